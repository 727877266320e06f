"""One session's settings: what the client asked for, checked, and how they look on the wire."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from .client_events import (
    AlawFormat,
    AudioInput,
    AudioOutput,
    PcmFormat,
    ResponseSettings,
    SemanticVad,
    ServerVad,
    SessionSettings,
    UlawFormat,
)
from .errors import ProtocolError, unsupported

Format = PcmFormat | UlawFormat | AlawFormat

VENDOR_VOICES = frozenset(
    ("alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar")
)
"""Names that stock clients send unasked; here each means the agent's own voice."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Immutable; `revise` makes the next one, whole or not at all.

    instructions, voice, speed and max_output_tokens are None until the client changes them: the
    agent's own then apply, and its instructions are not shown to clients.
    """

    session_id: str
    model: str
    input_format: Format = field(default_factory=PcmFormat)
    output_format: Format = field(default_factory=PcmFormat)
    turn_detection: ServerVad | SemanticVad | None = field(
        default_factory=lambda: SemanticVad(type="semantic_vad")
    )
    transcription: bool = True
    modality: Literal["audio", "text"] = "audio"
    instructions: str | None = None
    voice: str | None = None
    speed: float | None = None
    max_output_tokens: int | None = None

    def wire(self) -> dict[str, Any]:
        """The protocol's session object."""
        return {
            "type": "realtime",
            "object": "realtime.session",
            "id": self.session_id,
            "model": self.model,
            "output_modalities": [self.modality],
            "instructions": self.instructions or "",
            "max_output_tokens": self.max_output_tokens or "inf",
            "tools": [],
            "tool_choice": "auto",
            "audio": {
                "input": {
                    "format": self.input_format.model_dump(exclude_none=True),
                    "noise_reduction": None,
                    "transcription": {"language": "en"} if self.transcription else None,
                    "turn_detection": self.turn_detection.model_dump(exclude_none=True)
                    if self.turn_detection
                    else None,
                },
                "output": {
                    "format": self.output_format.model_dump(exclude_none=True),
                    "voice": self.voice or "default",
                    "speed": self.speed or 1.0,
                },
            },
        }


def revise(now: Settings, asked: SessionSettings, *, audio_flowing: bool) -> Settings:
    """The settings after `session.update`; ProtocolError, and nothing changed, if any is refused.

    audio_flowing: a reply is being sent, so its format can't change under it.
    """
    _refuse_unsupported(asked)
    change: dict[str, Any] = {}
    if asked.instructions is not None:
        change["instructions"] = asked.instructions
    if "max_output_tokens" in asked.model_fields_set:
        limit = asked.max_output_tokens
        change["max_output_tokens"] = limit if isinstance(limit, int) else None
    if asked.output_modalities is not None:
        change["modality"] = one_modality(asked.output_modalities, "session.output_modalities")
    if asked.audio is not None and asked.audio.input is not None:
        change |= _input_changes(asked.audio.input)
    if asked.audio is not None and asked.audio.output is not None:
        change |= _output_changes(asked.audio.output)
    after = replace(now, **change)
    if audio_flowing and (after.output_format, after.modality) != (now.output_format, now.modality):
        raise ProtocolError(
            "cannot_update_now",
            "The output format can't change during a response: wait for response.done.",
            param="session.audio.output.format",
        )
    return after


def one_modality(asked: list[Literal["text", "audio"]], param: str) -> Literal["text", "audio"]:
    if len(set(asked)) != 1:
        raise ProtocolError(
            "invalid_value",
            'Choose ["audio"] (its transcript comes along) or ["text"], not both.',
            param=param,
        )
    return asked[0]


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
        detection = asked.turn_detection
        if isinstance(detection, ServerVad) and detection.idle_timeout_ms is not None:
            raise unsupported(
                "session.audio.input.turn_detection.idle_timeout_ms",
                "Idle prompts belong to the agent's file: leave idle_timeout_ms out.",
            )
        change["turn_detection"] = detection
    return change


def _output_changes(asked: AudioOutput) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if asked.format is not None:
        change["output_format"] = asked.format
    if asked.voice is not None:
        if not isinstance(asked.voice, str):
            raise unsupported("session.audio.output.voice", "Name a voice of this server.")
        ours = asked.voice in VENDOR_VOICES or asked.voice == "default"
        change["voice"] = "" if ours else asked.voice  # "": the agent's own voice again
    if asked.speed is not None:
        change["speed"] = asked.speed
    return change


def _refuse_unsupported(asked: SessionSettings) -> None:
    refused = {
        "tools": (bool(asked.tools), "Tools are not supported: send an empty list."),
        "tool_choice": (
            asked.tool_choice not in (None, "auto", "none"),
            "Tools are not supported: leave tool_choice out.",
        ),
        "prompt": (
            asked.prompt is not None,
            "Stored prompts are not supported: use instructions.",
        ),
        "reasoning": (asked.reasoning is not None, "Reasoning effort can't be set: leave it out."),
        "include": (bool(asked.include), "Log probabilities are not available: leave include out."),
        "truncation": (
            asked.truncation not in (None, "auto"),
            'The history is cut by the server: send "auto" or leave truncation out.',
        ),
    }
    for name, (wrong, why) in refused.items():
        if wrong:
            raise unsupported(f"session.{name}", why)


def check_response(asked: ResponseSettings, now: Settings) -> None:
    """ProtocolError for what a single response can't change."""
    same_modality = asked.output_modalities is None or (
        one_modality(asked.output_modalities, "response.output_modalities") == now.modality
    )
    for name, fine, why in (
        ("conversation", asked.conversation in (None, "auto"), "out-of-band responses"),
        ("input", not asked.input, "a response with its own input"),
        ("tools", not asked.tools, "tools"),
        ("tool_choice", asked.tool_choice in (None, "auto", "none"), "tools"),
        ("prompt", asked.prompt is None, "stored prompts"),
        ("reasoning", asked.reasoning is None, "reasoning effort"),
        ("audio", not asked.audio, "audio settings per response (use session.update)"),
        ("output_modalities", same_modality, "a modality per response (use session.update)"),
        (
            "max_output_tokens",
            asked.max_output_tokens in (None, "inf", now.max_output_tokens),
            "a token limit per response (use session.update)",
        ),
    ):
        if not fine:
            raise unsupported(f"response.{name}", f"Not supported: {why}.")
