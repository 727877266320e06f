"""Tools of the call itself: end it, hand it on, press keys."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from voice_agent.events import EndReason

from .base import Tool, ToolFailed

if TYPE_CHECKING:
    from voice_agent.agent import Call

KEYS = re.compile(r"[0-9A-D*#]{1,32}")
DRAIN_S = 30.0
"""At most this long is a transfer kept waiting for the words that are being said."""


def end_call() -> Tool:
    """Our words are played to their last sample, or the agent's goodbye is; then the call ends."""

    async def run(arguments: dict[str, Any], call: Call) -> None:
        call.end_politely(EndReason.AGENT_GOODBYE)

    return Tool(
        "end_call",
        "End the call. Use it when the caller says goodbye or has nothing more to ask.",
        {"type": "object", "properties": {}},
        run,
    )


def transfer_call(targets: Mapping[str, str], timeout_s: float) -> Tool:
    """targets: name -> address; the model chooses a name and never sees an address."""
    places = dict(targets)

    async def run(arguments: dict[str, Any], call: Call) -> None:
        await call.transfer(places[arguments["to"]])

    return Tool(
        "transfer_call",
        "Transfer the caller to someone else. Tell the caller first.",
        {
            "type": "object",
            "properties": {"to": {"type": "string", "enum": sorted(places)}},
            "required": ["to"],
        },
        run,
        timeout_s=timeout_s + DRAIN_S,
    )


def send_dtmf() -> Tool:
    async def run(arguments: dict[str, Any], call: Call) -> str:
        keys = str(arguments["keys"]).upper()
        if not KEYS.fullmatch(keys):
            raise ToolFailed("keys are 1 to 32 of 0-9, A-D, * and #")
        await call.send_dtmf(keys)
        return "sent"

    return Tool(
        "send_dtmf",
        "Press keys of the telephone, for example in another system's menu.",
        {"type": "object", "properties": {"keys": {"type": "string"}}, "required": ["keys"]},
        run,
    )
