"""A model's arguments, checked before anything runs. Pure."""

from __future__ import annotations

import json
from typing import Any

from .base import Tool, ToolFailed

MAX_CHARS = 8000


def parse(tool: Tool, text: str) -> dict[str, Any]:
    """The arguments as an object that fits the tool's schema. Raises ToolFailed, for the model."""
    if len(text) > MAX_CHARS:
        raise ToolFailed(f"the arguments of {tool.name} are too long")
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError):
        raise ToolFailed(f"the arguments of {tool.name} are not valid JSON") from None
    if not isinstance(arguments, dict):
        raise ToolFailed(f"the arguments of {tool.name} must be a JSON object")
    from jsonschema.exceptions import SchemaError, best_match  # loads slowly: with the first call
    from jsonschema.validators import validator_for

    schema = dict(tool.parameters)
    try:
        problem = best_match(validator_for(schema)(schema).iter_errors(arguments))
    except SchemaError:
        raise ToolFailed(f"the schema of {tool.name} is broken") from None
    if problem is not None:
        at = ".".join(map(str, problem.absolute_path))
        where = f" ({at})" if at else ""
        raise ToolFailed(f"wrong arguments for {tool.name}{where}: {problem.message[:200]}")
    return arguments
