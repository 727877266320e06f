"""Log lines: one per turn, one per call end, as text or JSON; no content unless asked for."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any, Literal, TextIO

from voice_agent.events import EndReason
from voice_agent.trace import TurnTrace
from voice_agent.trace_record import CONTENT, record_of

log = logging.getLogger("voice_agent.call")

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    "color_message",
}
_QUIET = ("aioice", "alembic", "aiortc", "asyncio", "httpx2", "httpcore2", "uvicorn", "websockets")


class TextFormatter(logging.Formatter):
    """`12:00:01.250 INFO voice_agent.call turn  call=ab12 turn=3 ...`"""

    default_time_format = "%H:%M:%S"
    default_msec_format = "%s.%03d"

    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{k}={_plain(v)}" for k, v in extras(record).items())
        head = f"{self.formatTime(record)} {record.levelname} {record.name} {record.getMessage()}"
        text = f"{head}  {fields}" if fields else head
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (Unix seconds), level, logger, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        body: dict[str, Any] = {
            "time": round(record.created, 3),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **extras(record),
        }
        if record.exc_info:
            body["exception"] = self.formatException(record.exc_info)
        return json.dumps(body, default=str, ensure_ascii=False)


class _StandardError(logging.StreamHandler[TextIO]):
    """Whatever sys.stderr is at the moment: a progress display may stand in for it."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def setup(
    fmt: Literal["text", "json"] = "text", level: str = "INFO", stream: TextIO | None = None
) -> None:
    """Send every log line to `stream` (standard error) in one format. Callable again."""
    handler = logging.StreamHandler(stream) if stream else _StandardError()
    handler.setFormatter(JsonFormatter() if fmt == "json" else TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def chosen() -> tuple[str, str]:
    """Format and level in use, for the processes we start: `setup(*chosen())`."""
    root = logging.getLogger()
    as_json = any(isinstance(h.formatter, JsonFormatter) for h in root.handlers)
    return ("json" if as_json else "text", logging.getLevelName(root.level))


def extras(record: logging.LogRecord) -> dict[str, Any]:
    """The fields a call site passed as `extra`."""
    return {k: v for k, v in vars(record).items() if k not in _STANDARD}


def turn_done(trace: TurnTrace, *, content: bool = False) -> None:
    """The one INFO line of a turn."""
    log.info("turn", extra=turn_fields(trace, content=content))


def call_ended(
    call: str, reason: EndReason, *, duration_s: float, turns: int, agent: str = ""
) -> None:
    """The one INFO line of a call's end."""
    fields = {
        "call": call,
        "agent": agent,
        "reason": reason.value,
        "duration_s": round(duration_s, 1),
        "turns": turns,
    }
    log.info("call ended", extra=fields)


def turn_fields(trace: TurnTrace, *, content: bool) -> dict[str, Any]:
    """What a turn's line holds. content: also what was said, by both."""
    record = record_of(trace, content=content)
    total = record["voice_to_voice_ms"]
    said = CONTENT if content else ()
    return {
        "call": record["call"],
        "turn": record["turn"],
        "revision": record["revision"],
        "outcome": record["outcome"],
        "interrupted": record["interrupted"],
        "voice_to_voice_ms": None if total is None else round(total),
        "stages_ms": record["stages"],
        "partials": record["partials"],
        "prompt_tokens": record["prompt_tokens"],
        "cached_tokens": record["cached_tokens"],
        "output_tokens": record["output_tokens"],
        "backend": record["backend"],
        "fallback": record["fallback"],
        **{name: record[name] for name in said},
    }


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ",".join(f"{k}:{_plain(v)}" for k, v in value.items()) or "-"
    if value is None or value == "":
        return "-"
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if any(c.isspace() for c in text) else text
