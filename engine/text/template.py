"""Renders a model's own jinja chat template, in a sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import ModelError

Message = tuple[str, str]
"""(role, content); role is system, user or assistant."""


class ChatTemplate:
    """One model's template. ModelError when it can't be compiled."""

    def __init__(self, source: str, *, bos: str = "", eos: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_refuse, strftime_now=_now)
        self._tokens = {"bos_token": bos, "eos_token": eos}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise ModelError(f"the model's chat template can't be read: {error}") from None

    def render(self, messages: Sequence[Message], *, open_answer: bool = False) -> str:
        """The dialogue as text; open_answer adds what precedes an answer. ModelError if refused."""
        full = [{"role": role, "content": content} for role, content in messages]
        return self.write(full, open_answer=open_answer)

    def write(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        open_answer: bool = False,
    ) -> str:
        """The same for messages as templates know them: `role`, `content`, `tool_calls`."""
        try:
            return self._template.render(
                messages=list(messages),
                tools=list(tools) or None,
                add_generation_prompt=open_answer,
                **self._tokens,
            )
        except Exception as error:  # a template can fail in any way
            raise ModelError(f"the model's chat template refused a dialogue: {error}") from None


def _to_json(value: Any, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().strftime(form)
