"""A model's arguments, checked before anything runs. Pure."""

from __future__ import annotations

import json
import logging
from typing import Any

from .base import Tool, ToolFailed

log = logging.getLogger(__name__)

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
    from jsonschema.exceptions import best_match  # loads slowly: with the first call
    from jsonschema.validators import validator_for
    from referencing import Registry

    schema = dict(tool.parameters)
    try:  # an empty registry: a schema that refers elsewhere is not fetched
        validator = validator_for(schema)(schema, registry=Registry())
        problem = best_match(validator.iter_errors(arguments))
    except Exception:  # a server's schema can be anything
        log.exception("the schema of the tool %s is broken", tool.name)
        raise ToolFailed(f"the schema of {tool.name} is broken") from None
    if problem is not None:
        at = ".".join(map(str, problem.absolute_path))
        where = f" ({at})" if at else ""
        raise ToolFailed(f"wrong arguments for {tool.name}{where}: {problem.message[:200]}")
    return arguments
