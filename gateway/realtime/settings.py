"""One session's settings: what the client asked for, checked, and how they look on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .client_events import (
    AlawFormat,
    AudioInput,
    AudioOutput,
    Choice,
    FunctionTool,
    McpTool,
    PcmFormat,
    SemanticVad,
    ServerVad,
    SessionSettings,
    TranscriptionSettings,
    UlawFormat,
)
from .errors import ProtocolError, unsupported

Format = PcmFormat | UlawFormat | AlawFormat
Modality = Literal["audio", "text"]

VENDOR_VOICES = frozenset(
    ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")
)
"""Names that stock clients send unasked; here each means the agent's own voice."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Immutable; `revise` makes the next one, whole or not at all.

    instructions, voice, speed and max_output_tokens are None until the client changes them: the
    agent's own then apply, and its instructions are not shown to clients. kind: a "transcription"
    session answers nothing. hidden: instructions and tools were laid down with a token, whose
    holder does not see them.
    """

    session_id: str
    model: str
    kind: Literal["realtime", "transcription"] = "realtime"
    input_format: Format = field(default_factory=PcmFormat)
    output_format: Format = field(default_factory=PcmFormat)
    turn_detection: ServerVad | SemanticVad | None = field(
        default_factory=lambda: SemanticVad(type="semantic_vad")
    )
    transcription: bool = True
    modality: Modality = "audio"
    instructions: str | None = None
    voice: str | None = None
    speed: float | None = None
    max_output_tokens: int | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: Choice = "auto"
    tracing: str | dict[str, Any] | None = None
    hidden: bool = False

    def kept_back(self) -> Settings:
        """The same, with instructions and tools not shown."""
        return replace(self, hidden=True)

    def wire(self) -> dict[str, Any]:
        """The protocol's session object."""
        if self.kind == "transcription":
            return {
                "type": "transcription",
                "object": "realtime.transcription_session",
                "id": self.session_id,
                "audio": {"input": self._wire_input()},
            }
        choice = self.tool_choice
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.session_id,
            "model": self.model,
            "output_modalities": [self.modality],
            "instructions": "" if self.hidden else self.instructions or "",
            "max_output_tokens": self.max_output_tokens or "inf",
            "tools": [tool.model_dump(exclude_none=True) for tool in self.tools if not self.hidden],
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
            "tracing": self.tracing,
            "truncation": "auto",
            "audio": {
                "input": self._wire_input(),
                "output": {
                    "format": self.output_format.model_dump(exclude_none=True),
                    "voice": self.voice or "default",
                    "speed": self.speed or 1.0,
                },
            },
        }

    def _wire_input(self) -> dict[str, Any]:
        detection = self.turn_detection
        return {
            "format": self.input_format.model_dump(exclude_none=True),
            "noise_reduction": None,
            "transcription": {"language": "en"} if self.transcription else None,
            "turn_detection": detection.model_dump(exclude_none=True) if detection else None,
        }


def revise(now: Settings, asked: SessionSettings | TranscriptionSettings) -> Settings:
    """The settings after `session.update`. ProtocolError, and nothing changed, if it is refused."""
    change: dict[str, Any] = {"kind": asked.type}
    if asked.include:
        raise unsupported(
            "session.include", "Log probabilities are not available: leave include out."
        )
    if isinstance(asked, SessionSettings):
        change |= _realtime_changes(asked)
    if asked.audio is not None and asked.audio.input is not None:
        change |= _input_changes(asked.audio.input)
    if asked.audio is not None and asked.audio.output is not None:
        change |= _output_changes(asked.audio.output)
    return replace(now, **change)


def _realtime_changes(asked: SessionSettings) -> dict[str, Any]:
    _refuse_unsupported(asked)
    change: dict[str, Any] = {}
    if asked.instructions is not None:
        change["instructions"] = asked.instructions
    if "max_output_tokens" in asked.model_fields_set:
        limit = asked.max_output_tokens
        change["max_output_tokens"] = limit if isinstance(limit, int) else None
    if asked.output_modalities is not None:
        change["modality"] = one_modality(asked.output_modalities, "session.output_modalities")
    if asked.tools is not None:
        change["tools"] = functions(asked.tools, "session.tools")
    if asked.tool_choice is not None:
        change["tool_choice"] = chosen(asked.tool_choice, "session.tool_choice")
    if "tracing" in asked.model_fields_set:
        change["tracing"] = asked.tracing
    return change


def one_modality(asked: list[Modality], param: str) -> Modality:
    if len(set(asked)) != 1:
        raise ProtocolError(
            "invalid_value",
            'Choose ["audio"] (its transcript comes along) or ["text"], not both.',
            param=param,
        )
    return asked[0]


def functions(asked: list[FunctionTool | McpTool], param: str) -> tuple[FunctionTool, ...]:
    """The client's own functions. Raises ProtocolError for MCP servers and double names."""
    found: list[FunctionTool] = []
    for tool in asked:
        if isinstance(tool, McpTool):
            raise unsupported(
                param, "MCP servers belong to the agent's file: name functions of your own."
            )
        found.append(tool)
    if len({tool.name for tool in found}) < len(found):
        raise ProtocolError("invalid_value", "Two tools have one name.", param=param)
    return tuple(found)


def chosen(asked: Choice, param: str) -> Choice:
    if not isinstance(asked, str) and (asked.type != "function" or not asked.name):
        raise unsupported(param, 'Name a function: {"type": "function", "name": NAME}.')
    return asked


def _input_changes(asked: AudioInput) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if asked.format is not None:
        change["input_format"] = asked.format
    if asked.noise_reduction is not None:
        raise unsupported(
            "session.audio.input.noise_reduction",
            "Noise reduction is not available: leave it out or send null.",
        )
    if "transcription" in asked.model_fields_set:
        transcription = asked.transcription
        if transcription is not None:
            languages = {transcription.language, *(transcription.languages or ())} - {None}
            if any(str(name).split("-")[0].lower() != "en" for name in languages):
                raise unsupported(
                    "session.audio.input.transcription.language", "Only English (en) is spoken."
                )
            if transcription.prompt or transcription.keywords:
                raise unsupported(
                    "session.audio.input.transcription.prompt",
                    "Recognition takes no prompt or keywords: leave them out.",
                )
        change["transcription"] = transcription is not None
    if "turn_detection" in asked.model_fields_set:
        change["turn_detection"] = asked.turn_detection
    return change


def _output_changes(asked: AudioOutput) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if asked.format is not None:
        change["output_format"] = asked.format
    if asked.voice is not None:
        change["voice"] = our_voice(asked.voice, "session.audio.output.voice")
    if asked.speed is not None:
        change["speed"] = asked.speed
    return change


def our_voice(asked: str | dict[str, Any], param: str) -> str:
    """A voice of this server; "" is the agent's own."""
    if not isinstance(asked, str):
        raise unsupported(param, "Name a voice of this server.")
    return "" if asked in VENDOR_VOICES or asked == "default" else asked


def _refuse_unsupported(asked: SessionSettings) -> None:
    refused = {
        "prompt": (
            asked.prompt is not None,
            "Stored prompts are not supported: use instructions.",
        ),
        "reasoning": (asked.reasoning is not None, "Reasoning effort can't be set: leave it out."),
        "truncation": (
            asked.truncation not in (None, "auto"),
            'The history is cut by the server: send "auto" or leave truncation out.',
        ),
    }
    for name, (wrong, why) in refused.items():
        if wrong:
            raise unsupported(f"session.{name}", why)
