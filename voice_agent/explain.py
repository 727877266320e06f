"""Validation errors in a person's words: where, what, and which name was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from typing import get_args, get_origin

from pydantic import BaseModel, ValidationError

Where = Callable[[Sequence[str | int]], str]
"""Path of a key -> the place a person can open, such as `server.toml:12`."""


def explain(error: ValidationError, model: type[BaseModel], where: Where) -> str:
    """One line per mistake, in the order of the file."""
    lines: list[str] = []
    for item in error.errors(include_url=False):
        path = [p for p in item["loc"] if not str(p).startswith("function-")]
        name = ".".join(str(p) for p in path) or "the file"
        if item["type"] == "extra_forbidden":
            lines.append(f"{where(path)}: unknown key {name!r}{suggest(model, path)}")
        elif item["type"] == "missing":
            lines.append(f"{where(path[:-1])}: {name!r} is missing")
        else:
            message = item["msg"].removeprefix("Value error, ")
            lines.append(f"{where(path)}: {name}: {message}")
    return "\n".join(dict.fromkeys(lines))


def suggest(model: type[BaseModel], path: Sequence[str | int]) -> str:
    """`; did you mean 'server.port'?` for an unknown path, else the names that exist there."""
    known: type[BaseModel] | None = model
    for piece in path[:-1]:
        known = section_of(known, str(piece)) if known else None
    if known is None or not path:
        return ""
    last = str(path[-1])
    elsewhere = [p for p in dotted_names(model) if p.rsplit(".", 1)[-1] == last]
    if elsewhere:
        return f"; did you mean {elsewhere[0]!r}?"
    near = difflib.get_close_matches(last, known.model_fields, 1, cutoff=0.5)
    if near:
        return f"; did you mean {'.'.join([*map(str, path[:-1]), near[0]])!r}?"
    return f"; known here: {', '.join(known.model_fields)}"


def section_of(model: type[BaseModel] | None, name: str) -> type[BaseModel] | None:
    """The model of a nested section, if `name` is one."""
    field = model.model_fields.get(name) if model else None
    if field is None or get_origin(field.annotation) is tuple:  # a list of tables is a value
        return None
    for kind in (field.annotation, *get_args(field.annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def dotted_names(model: type[BaseModel], before: str = "") -> list[str]:
    """Every leaf as `section.key`."""
    names: list[str] = []
    for name in model.model_fields:
        inner = section_of(model, name)
        if inner is None:
            names.append(before + name)
        else:
            names += dotted_names(inner, f"{before}{name}.")
    return names
