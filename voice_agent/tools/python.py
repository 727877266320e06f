"""A Python function as a tool: its signature is the schema, its docstring the description."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from pydantic import ConfigDict, ValidationError, create_model

from voice_agent.errors import UsageError

from .base import OnInterrupt, Tool, ToolFailed

if TYPE_CHECKING:
    from voice_agent.agent import Call

F = TypeVar("F", bound=Callable[..., Any])
OPTIONS = "__voice_agent_tool__"
CALL = "call"
"""A parameter of this name is the call itself, and no argument of the model's."""


@dataclass(frozen=True, slots=True)
class Options:
    name: str | None
    description: str | None
    read_only: bool
    timeout_s: float | None
    on_interrupt: OnInterrupt


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    timeout_s: float | None = None,
    on_interrupt: OnInterrupt = "finish",
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    timeout_s: float | None = None,
    on_interrupt: OnInterrupt = "finish",
) -> F | Callable[[F], F]:
    """Says how a function runs as a tool; the function stays what it is.

    read_only: it changes nothing, so that it may start the moment the caller's turn ends; any other
    waits until the answer is heard or half a second has passed. timeout_s: of one run, else the
    agent's. on_interrupt: "finish" or "cancel", when the caller takes the floor while it runs.

    The function may be async; a plain one runs on a thread. A parameter called `call` is the live
    call. What it returns is told to the model (text, or anything JSON has); None: nothing is said.
    """
    options = Options(name, description, read_only, timeout_s, on_interrupt)

    def mark(function: F) -> F:
        setattr(function, OPTIONS, options)
        return function

    return mark if function is None else mark(function)


def from_function(function: Callable[..., Any], *, timeout_s: float, max_chars: int) -> Tool:
    """Raises UsageError VA445 for a function whose parameters have no JSON form."""
    options: Options = getattr(function, OPTIONS, Options(None, None, False, None, "finish"))
    name = str(options.name or getattr(function, "__name__", ""))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        fields: dict[str, Any] = {
            p.name: (hints.get(p.name, Any), ... if p.default is p.empty else p.default)
            for p in parameters.values()
            if p.name != CALL
        }
        model = create_model(f"{name}_arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except Exception as error:
        raise UsageError(f"{name!r} cannot be a tool: {error}", code="VA445") from error
    schema.pop("title", None)
    schema.pop("additionalProperties", None)  # small models take it for an argument
    for part in schema.get("properties", {}).values():
        part.pop("title", None)
    wants_call = CALL in parameters

    async def run(arguments: dict[str, Any], call: Call) -> str | None:
        try:
            checked = model(**arguments)
        except ValidationError as error:
            raise ToolFailed(f"wrong arguments: {error.errors()[0]['msg']}") from None
        given = {field: getattr(checked, field) for field in fields}
        if wants_call:
            given[CALL] = call.handle
        if inspect.iscoroutinefunction(function):
            result = await function(**given)
        else:
            result = await asyncio.to_thread(function, **given)
        return as_text(result)

    return Tool(
        name,
        str(options.description or inspect.getdoc(function) or name),
        schema,
        run,
        read_only=options.read_only,
        timeout_s=options.timeout_s or timeout_s,
        on_interrupt=options.on_interrupt,
        max_chars=max_chars,
    )


def as_text(result: Any) -> str | None:
    """A function's result as the model reads it."""
    if result is None or isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str)


def find(path: str) -> Callable[..., Any]:
    """The function at `module:name`. Raises UsageError VA445."""
    module, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # an operator's module can fail in any way
        raise UsageError(f"the tool {path!r} cannot be loaded: {error}", code="VA445") from error
    if not callable(found):
        raise UsageError(f"the tool {path!r} is not a function", code="VA445")
    return typing.cast("Callable[..., Any]", found)
