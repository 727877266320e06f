"""What one response is to be: the session's settings and what `response.create` says otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from voice_agent.context import Declaration
from voice_agent.reply_settings import ReplySettings, Said, ToolChoice

from .client_events import (
    Choice,
    FunctionTool,
    Input,
    ItemReference,
    MessageItem,
    Part,
    ResponseSettings,
)
from .errors import ProtocolError, unsupported
from .items import Conversation, Item
from .settings import Format, Modality, Settings, chosen, functions, one_modality, our_voice


@dataclass(frozen=True, slots=True)
class Plan:
    """How a response looks on the wire. aside: beside the conversation."""

    modality: Modality
    output_format: Format
    voice: str
    max_output_tokens: int | None
    metadata: dict[str, str] | None = None
    aside: bool = False


def plan_of(settings: Settings, asked: ResponseSettings | None = None) -> Plan:
    """Raises ProtocolError for what a single response can't change."""
    plan = Plan(
        settings.modality,
        settings.output_format,
        settings.voice or "default",
        settings.max_output_tokens,
    )
    if asked is None:
        return plan
    for name, given, why in (
        ("prompt", asked.prompt is not None, "Stored prompts are not supported."),
        ("reasoning", asked.reasoning is not None, "Reasoning effort can't be set."),
        ("conversation", asked.conversation not in (None, "auto", "none"), "It is auto or none."),
    ):
        if given:
            raise unsupported(f"response.{name}", why)
    output = asked.audio.output if asked.audio is not None else None
    modality, limit = plan.modality, plan.max_output_tokens
    if asked.output_modalities is not None:
        modality = one_modality(asked.output_modalities, "response.output_modalities")
    if asked.max_output_tokens is not None:
        limit = asked.max_output_tokens if isinstance(asked.max_output_tokens, int) else None
    return Plan(
        modality,
        output.format if output is not None and output.format is not None else plan.output_format,
        str(output.voice) if output is not None and output.voice is not None else plan.voice,
        limit,
        asked.metadata,
        asked.conversation == "none",
    )


def reply_settings(
    plan: Plan, asked: ResponseSettings | None, conversation: Conversation, most_tokens: int
) -> ReplySettings:
    """The same in the house's terms. Raises ProtocolError."""
    if asked is None:
        return ReplySettings()
    voice = None
    if asked.audio is not None and asked.audio.output is not None and asked.audio.output.voice:
        voice = our_voice(asked.audio.output.voice, "response.audio.output.voice")
    tools, choice, said = None, None, None
    if asked.tools is not None:
        tools = declarations(functions(asked.tools, "response.tools"))
    if asked.tool_choice is not None:
        choice = tool_choice(chosen(asked.tool_choice, "response.tool_choice"))
    if asked.input is not None:
        said = tuple(_said(given, conversation) for given in asked.input)
    limit = None
    if asked.max_output_tokens is not None:
        limit = plan.max_output_tokens or most_tokens
    return ReplySettings(
        instructions=asked.instructions,
        tools=tools,
        tool_choice=choice,
        said=said,
        max_output_tokens=limit,
        voice=voice,
        aloud=plan.modality == "audio",
    )


def declarations(tools: Sequence[FunctionTool]) -> tuple[Declaration, ...]:
    return tuple(
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description or "",
                "parameters": tool.parameters or {"type": "object", "properties": {}},
            },
        }
        for tool in tools
    )


def tool_choice(asked: Choice) -> ToolChoice:
    return ToolChoice(asked) if isinstance(asked, str) else ToolChoice("required", asked.name)


def text_of(content: Sequence[Part], param: str) -> str:
    """The words of a message; audio counts by its transcript. Raises ProtocolError."""
    for part in content:
        if part.type == "input_image":
            raise unsupported(param, "Images can't be looked at: send text.")
        if part.type == "input_audio" and part.audio and not part.transcript:
            raise unsupported(
                param,
                "Audio needs its transcript here; to be recognised it is sent by "
                "input_audio_buffer.append.",
            )
    text = "\n".join(filter(None, (part.text or part.transcript for part in content)))
    if not text.strip():
        raise ProtocolError("invalid_value", "The item holds no text.", param=param)
    return text


def content_of(role: str, text: str) -> list[dict[str, Any]]:
    return [{"type": "output_text" if role == "assistant" else "input_text", "text": text}]


def _said(given: Input, conversation: Conversation) -> Said:
    match given:
        case MessageItem():
            return Said(given.role, text_of(given.content, "response.input"))
        case ItemReference():
            item = conversation.get(given.id)
            if isinstance(item, Item) and item.text.strip():
                return Said(item.role, item.text)
            raise unsupported("response.input", f"The item {given.id[:64]!r} has no words.")
        case _:
            raise unsupported(
                "response.input", f"Items of type {given.type} can't be a response's input."
            )
