"""Tools that the client of a call does: a program behind a Realtime session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from voice_agent.context import Declaration
from voice_agent.errors import InternalError, UsageError

from .base import Tool
from .settings import NAME

if TYPE_CHECKING:
    from voice_agent.agent import Call


def client_tool(declaration: Declaration) -> Tool:
    """One that is asked for by `ToolStarted` and answered by `ClientRequests.tool_result`.

    It counts as read-only: it is asked for at commit, and when to do it is the client's choice.
    Raises UsageError VA117.
    """
    told = declaration["function"]
    if not NAME.fullmatch(told["name"]):
        raise UsageError(f"{told['name'][:64]!r} is no name for a tool", code="VA117")
    parameters = told.get("parameters") or {"type": "object", "properties": {}}
    about = told.get("description") or ""
    return Tool(told["name"], about, parameters, _not_here, read_only=True, by_client=True)


async def _not_here(arguments: dict[str, Any], call: Call) -> NoReturn:
    raise InternalError("a client's tool was run by the server")
