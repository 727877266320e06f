"""Requests as clients send them. A parameter that is not known here is refused, not passed over."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

MAX_CHOICES = 16

Name = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Lenient(BaseModel):
    """Parts of messages that clients send back as they got them: further fields are left alone."""

    model_config = ConfigDict(extra="ignore", frozen=True)


# messages


class TextPart(Lenient):
    type: Literal["text"]
    text: str


Content = str | list[TextPart] | None


def text_of(content: Content) -> str:
    if isinstance(content, list):
        return "".join(part.text for part in content)
    return content or ""


class CalledFunction(Lenient):
    name: Name
    arguments: str = "{}"


class Call(Lenient):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Lenient):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content = None
    tool_calls: list[Call] | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Message:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("a message needs content")
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates know it."""
        out: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": text_of(self.content),
        }
        if self.role == "assistant" and self.tool_calls:
            out["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.function.name,
                        "arguments": _parsed(call.function.arguments),
                    },
                }
                for call in self.tool_calls
            ]
        return out


def _parsed(arguments: str) -> Any:
    """A call's arguments as an object; the text itself where it is none (it was cut short)."""
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


# tools and formats


NO_PARAMETERS = {"type": "object", "properties": {}, "additionalProperties": False}


class Function(Strict):
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    type: Literal["function"]
    function: Function

    def for_template(self) -> dict[str, Any]:
        told = self.function.model_dump(exclude_none=True, exclude={"strict"})
        told.setdefault("parameters", NO_PARAMETERS)
        return {"type": "function", "function": told}


class ChosenFunction(Strict):
    name: Name


class ToolChoice(Strict):
    type: Literal["function"]
    function: ChosenFunction


class TextFormat(Strict):
    type: Literal["text"]


class JsonObject(Strict):
    type: Literal["json_object"]


class NamedSchema(Strict):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    name: Name
    description: str | None = None
    schema_: dict[str, Any] = Field(default_factory=dict, alias="schema")
    strict: bool | None = None


class JsonSchema(Strict):
    type: Literal["json_schema"]
    json_schema: NamedSchema


Format = Annotated[TextFormat | JsonObject | JsonSchema, Field(discriminator="type")]


class StructuredOutputs(Strict):
    """Exactly one of them: an extension, named as in vLLM."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    json_: dict[str, Any] | bool | None = Field(default=None, alias="json")
    regex: str | None = None
    grammar: str | None = None
    choice: Annotated[list[str], Field(min_length=1, max_length=1000)] | None = None

    @model_validator(mode="after")
    def _one(self) -> StructuredOutputs:
        if (
            sum(value is not None for value in (self.json_, self.regex, self.grammar, self.choice))
            != 1
        ):
            raise ValueError("give exactly one of json, regex, grammar and choice")
        return self


# requests


class StreamOptions(Strict):
    include_usage: bool = False
    include_obfuscation: bool | None = None


class Generating(Strict):
    """What both endpoints take. The last four lines are extensions, named as in vLLM."""

    model: str
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] | None = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100.0, le=100.0)]] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "priority"] | None = None
    user: str | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0.0, le=10.0)] | None = None
    min_tokens: Annotated[int, Field(ge=0)] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    structured_outputs: StructuredOutputs | None = None

    @property
    def wants_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(Generating):
    """`user`, `metadata`, `store`, `safety_identifier` and `prompt_cache_key` change nothing."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    response_format: Format | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    modalities: list[Literal["text"]] | None = None
    metadata: dict[str, str] | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    @model_validator(mode="after")
    def _fits(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        names = [tool.function.name for tool in self.tools or ()]
        if len(names) != len(set(names)):
            raise ValueError("two tools have the same name")
        if isinstance(self.tool_choice, ToolChoice):
            if self.tool_choice.function.name not in names:
                raise ValueError(f"tool_choice names {self.tool_choice.function.name!r}, no tool")
        elif self.tool_choice == "required" and not names:
            raise ValueError("tool_choice is required and there are no tools")
        return self


class CompletionRequest(Generating):
    prompt: str | list[str] | list[int] | list[list[int]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    best_of: Literal[1] | None = None
