"""Messages of a media stream: one model for each, told apart by `event`.

https://www.twilio.com/docs/voice/media-streams/websocket-messages. What is not used here is left
out of the models and ignored on the wire, because platforms add fields of their own.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from gateway.realtime.errors import ProtocolError

Id = Annotated[str, Field(min_length=1, max_length=128)]


class _Wire(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class MediaFormat(_Wire):
    encoding: str = "audio/x-mulaw"
    sampleRate: int = 8000
    channels: int = 1

    @property
    def ulaw(self) -> bool:
        return (self.encoding, self.sampleRate, self.channels) == ("audio/x-mulaw", 8000, 1)


class StartBody(_Wire):
    streamSid: Id
    callSid: Annotated[str, Field(max_length=128)] = ""
    mediaFormat: MediaFormat = MediaFormat()
    customParameters: dict[str, Annotated[str, Field(max_length=4096)]] = Field(
        default_factory=dict, max_length=64
    )


class MediaBody(_Wire):
    payload: str
    track: str = "inbound"


class DtmfBody(_Wire):
    digit: Annotated[str, Field(max_length=1)]


class MarkBody(_Wire):
    name: Annotated[str, Field(max_length=128)]


class Connected(_Wire):
    event: Literal["connected"]


class Start(_Wire):
    event: Literal["start"]
    start: StartBody


class Media(_Wire):
    event: Literal["media"]
    media: MediaBody


class Dtmf(_Wire):
    event: Literal["dtmf"]
    dtmf: DtmfBody


class Mark(_Wire):
    event: Literal["mark"]
    mark: MarkBody


class Stop(_Wire):
    event: Literal["stop"]


AnyMessage = Annotated[Connected | Start | Media | Dtmf | Mark | Stop, Field(discriminator="event")]
_ADAPTER: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)


def parse(text: str | bytes) -> AnyMessage | None:
    """None for an event that this server does not know. Raises ProtocolError."""
    try:
        return _ADAPTER.validate_json(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
    if first["type"] == "union_tag_invalid":
        return None
    if first["type"] == "json_invalid":
        raise ProtocolError("invalid_json", "The message is not valid JSON.")
    place = ".".join(map(str, first["loc"][1:])) or "event"  # the first part is the union's tag
    raise ProtocolError("invalid_value", f"{place}: {first['msg']}.", param=place)


def message(event: str, stream: str, **body: Any) -> str:
    """One message to the platform, as JSON."""
    return json.dumps({"event": event, "streamSid": stream, **body}, separators=(",", ":"))
