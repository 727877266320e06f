"""An agent with two tools. Run it, open the address it prints, and ask about an order."""

from __future__ import annotations

from voice_agent import Agent, Call, serve, tool

ORDERS = {"1001": "on its way, it arrives on Tuesday", "1002": "waiting for payment"}


@tool(read_only=True)
def order_status(number: str) -> str:
    """Where an order is. number: its digits."""
    return ORDERS.get(number, "unknown")


@tool(timeout_s=5)
async def cancel_order(number: str) -> str:
    """Cancel an order for good."""
    return "cancelled" if ORDERS.pop(number, None) else "there is no such order"


async def watch(call: Call) -> None:
    """Runs beside every call."""
    async for event in call:
        print(call.id, type(event).__name__)


agent = Agent(
    "You work at a shop's telephone. Answer in one short, plain sentence.",
    greeting="Hello, this is the shop. What can I do for you?",
    tools=(order_status, cancel_order),
    script=watch,
    settings={"tools": {"end_call": True, "fillers": ["One second."]}},
)

if __name__ == "__main__":
    serve(agent, port=8080)
