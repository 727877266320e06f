"""What a client may send: one pydantic model per event, told apart by `type`.

Field names and literals are the protocol's. Fields that it knows and this server does not do are
listed here too, so that they are refused with a reason (`settings.py`) rather than ignored;
fields it does not know are refused by the models.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from .errors import ProtocolError


class Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PcmFormat(Wire):
    type: Literal["audio/pcm"] = "audio/pcm"
    rate: Literal[24000] = 24000


class UlawFormat(Wire):
    type: Literal["audio/pcmu"]
    rate: Literal[8000] | None = None


class AlawFormat(Wire):
    type: Literal["audio/pcma"]
    rate: Literal[8000] | None = None


AudioFormat = Annotated[PcmFormat | UlawFormat | AlawFormat, Field(discriminator="type")]


class ServerVad(Wire):
    type: Literal["server_vad"] = "server_vad"
    create_response: bool = True
    interrupt_response: bool = True
    silence_duration_ms: Annotated[int, Field(ge=100, le=10_000)] | None = None
    prefix_padding_ms: Annotated[int, Field(ge=0, le=5_000)] | None = None
    threshold: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    idle_timeout_ms: Annotated[int, Field(ge=1_000, le=60_000)] | None = None


class SemanticVad(Wire):
    type: Literal["semantic_vad"]
    create_response: bool = True
    interrupt_response: bool = True
    eagerness: Literal["low", "medium", "high", "auto"] = "auto"


TurnDetection = Annotated[ServerVad | SemanticVad, Field(discriminator="type")]


class Transcription(Wire):
    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    languages: list[str] | None = None
    keywords: list[str] | None = None
    delay: str | None = None


class AudioInput(Wire):
    format: AudioFormat | None = None
    noise_reduction: dict[str, Any] | None = None
    transcription: Transcription | None = None
    turn_detection: TurnDetection | None = None


class AudioOutput(Wire):
    format: AudioFormat | None = None
    voice: str | dict[str, Any] | None = None
    speed: Annotated[float, Field(ge=0.25, le=1.5)] | None = None


class Audio(Wire):
    input: AudioInput | None = None
    output: AudioOutput | None = None


class FunctionTool(Wire):
    """What the client does for the model. parameters: JSON schema of an object."""

    type: Literal["function"] = "function"
    name: Annotated[str, Field(min_length=1, max_length=64)]
    description: Annotated[str, Field(max_length=8_000)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class McpTool(BaseModel):
    """Refused with a reason."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["mcp"]


class ChosenTool(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal["function", "mcp"]
    name: str | None = None


Tools = Annotated[list[FunctionTool | McpTool], Field(max_length=128)]
Choice = Literal["none", "auto", "required"] | ChosenTool
Modalities = list[Literal["text", "audio"]]
MaxTokens = Annotated[int, Field(ge=1, le=4096)] | Literal["inf"]


class SessionSettings(Wire):
    """`model_fields_set` tells what the client really sent: null and absent differ."""

    type: Literal["realtime"]
    audio: Audio | None = None
    include: list[str] | None = None
    instructions: Annotated[str, Field(max_length=64_000)] | None = None
    max_output_tokens: MaxTokens | None = None
    model: str | None = None
    output_modalities: Modalities | None = None
    parallel_tool_calls: bool | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tool_choice: Choice | None = None
    tools: Tools | None = None
    tracing: str | dict[str, Any] | None = None
    truncation: str | dict[str, Any] | None = None


class TranscriptionSettings(Wire):
    """Of a session that only writes down what it hears."""

    type: Literal["transcription"]
    audio: Audio | None = None
    include: list[str] | None = None


class ClientEvent(Wire):
    event_id: Annotated[str, Field(max_length=512)] | None = None


class SessionUpdate(ClientEvent):
    type: Literal["session.update"]
    session: Annotated[SessionSettings | TranscriptionSettings, Field(discriminator="type")]


class AudioAppend(ClientEvent):
    type: Literal["input_audio_buffer.append"]
    audio: str


class AudioCommit(ClientEvent):
    type: Literal["input_audio_buffer.commit"]


class AudioClear(ClientEvent):
    type: Literal["input_audio_buffer.clear"]


class OutputClear(ClientEvent):
    type: Literal["output_audio_buffer.clear"]


class Part(Wire):
    type: Literal["input_text", "output_text", "text", "input_audio", "output_audio", "input_image"]
    text: Annotated[str, Field(max_length=64_000)] | None = None
    audio: str | None = None
    transcript: str | None = None
    image_url: str | None = None
    detail: str | None = None


class MessageItem(Wire):
    type: Literal["message"]
    role: Literal["system", "user", "assistant"]
    content: Annotated[list[Part], Field(min_length=1, max_length=32)]
    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    object: Literal["realtime.item", "item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class CallItem(Wire):
    """A tool's call, made by a model elsewhere or earlier."""

    type: Literal["function_call"]
    name: Annotated[str, Field(min_length=1, max_length=64)]
    arguments: Annotated[str, Field(max_length=64_000)]
    call_id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    object: Literal["realtime.item", "item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class OutputItem(Wire):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(min_length=1, max_length=128)]
    output: Annotated[str, Field(max_length=256_000)]
    id: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    object: Literal["realtime.item", "item"] | None = None
    status: Literal["completed", "incomplete", "in_progress"] | None = None


class OtherItem(BaseModel):
    """Item kinds of the protocol that this server refuses with a reason."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: Literal[
        "mcp_approval_response",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
    ]


class ItemCreate(ClientEvent):
    type: Literal["conversation.item.create"]
    item: Annotated[MessageItem | CallItem | OutputItem | OtherItem, Field(discriminator="type")]
    previous_item_id: str | None = None


class ItemDelete(ClientEvent):
    type: Literal["conversation.item.delete"]
    item_id: str


class ItemRetrieve(ClientEvent):
    type: Literal["conversation.item.retrieve"]
    item_id: str


class ItemTruncate(ClientEvent):
    type: Literal["conversation.item.truncate"]
    item_id: str
    content_index: Annotated[int, Field(ge=0)]
    audio_end_ms: Annotated[int, Field(ge=0)]


class ItemReference(Wire):
    type: Literal["item_reference"]
    id: str


class ResponseOutput(Wire):
    format: AudioFormat | None = None
    voice: str | dict[str, Any] | None = None


class ResponseAudio(Wire):
    output: ResponseOutput | None = None


Input = Annotated[
    MessageItem | ItemReference | CallItem | OutputItem | OtherItem, Field(discriminator="type")
]


class ResponseSettings(Wire):
    audio: ResponseAudio | None = None
    conversation: str | None = None
    input: Annotated[list[Input], Field(max_length=256)] | None = None
    instructions: Annotated[str, Field(max_length=64_000)] | None = None
    max_output_tokens: MaxTokens | None = None
    metadata: dict[str, str] | None = None
    output_modalities: Modalities | None = None
    parallel_tool_calls: bool | None = None
    prompt: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tool_choice: Choice | None = None
    tools: Tools | None = None


class ResponseCreate(ClientEvent):
    type: Literal["response.create"]
    response: ResponseSettings | None = None


class ResponseCancel(ClientEvent):
    type: Literal["response.cancel"]
    response_id: str | None = None


AnyClientEvent = Annotated[
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | OutputClear
    | ItemCreate
    | ItemDelete
    | ItemRetrieve
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[AnyClientEvent] = TypeAdapter(AnyClientEvent)

_TAGS = frozenset(
    ("server_vad", "semantic_vad", "message", "realtime", "transcription", "function_call",
     "function_call_output", "item_reference", "FunctionTool", "McpTool", "ChosenTool")
)  # fmt: skip
_CODES = {
    "extra_forbidden": ("unknown_parameter", "Unknown parameter"),
    "missing": ("missing_required_parameter", "Missing required parameter"),
    "json_invalid": ("invalid_json", "The message is not valid JSON"),
    "union_tag_invalid": ("invalid_type", "Unknown value of `type`"),
    "union_tag_not_found": ("missing_required_parameter", "Missing required parameter `type`"),
}


def parse_client_event(text: str | bytes) -> AnyClientEvent:
    """Raises ProtocolError naming the first field at fault."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        raise _first_fault(error) from None


def _first_fault(error: ValidationError, *root: str) -> ProtocolError:
    first = error.errors(include_url=False, include_input=False)[0]
    code, words = _CODES.get(first["type"], ("invalid_value", first["msg"]))
    # pydantic puts the chosen member's tag into the path of a union; the client never sent it
    place = [str(p) for p in first["loc"] if "/" not in str(p) and "." not in str(p)]
    place = [*root, *(p for p in place if p not in _TAGS)]
    param = ".".join(place) or None
    detail = f"{words}: {param}." if param else f"{words}."
    return ProtocolError(code, detail, param=param)


_SESSION: TypeAdapter[SessionSettings | TranscriptionSettings] = TypeAdapter(
    Annotated[SessionSettings | TranscriptionSettings, Field(discriminator="type")]
)


def parse_session(session: dict[str, Any]) -> SessionSettings | TranscriptionSettings:
    """A session object from outside of a session. Raises like `parse_client_event`."""
    try:
        return _SESSION.validate_python({"type": "realtime", **session})
    except ValidationError as error:
        raise _first_fault(error, "session") from None


def client_event_id(text: str | bytes) -> str | None:
    """The `event_id` of a message that did not parse, if it can be found."""
    import json

    try:
        data = json.loads(text)
    except ValueError:
        return None
    value = data.get("event_id") if isinstance(data, dict) else None
    return value if isinstance(value, str) else None
