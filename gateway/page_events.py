"""The call's events as the page reads them: small JSON objects on the data channel `events`.

`type` is one of started, speech, partial, final, reopened, reply, text, heard, done, trace, error,
ended; turns and replies are named by their numbers within the call. Beside them there is `line`, of
the line itself (line_call.py): the next credential (`resume`, `hold_s`; on a socket only), or how
long there was no line (`gap_ms`).
"""

from __future__ import annotations

from typing import Any

from voice_agent import events as ev
from voice_agent.trace_record import record_of

MAX_BEHIND_MS = 10_000


def behind_ms(message: dict[str, Any]) -> int | None:
    """What a `playback` message of the page says: ms that its sound is behind what was sent (jitter
    buffer and loudspeaker). None for another message and for nonsense."""
    value = message.get("behind_ms") if message.get("type") == "playback" else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return round(value) if 0 <= value <= MAX_BEHIND_MS else None


def page_event(event: ev.Event) -> dict[str, Any] | None:
    """None for events that the page does not show."""
    match event:
        case ev.CallStarted(call, agent):
            return {"type": "started", "call": call, "agent": agent}
        case ev.SpeechStarted(turn):
            return {"type": "speech", "turn": turn.index}
        case ev.Partial(turn, confirmed, tail):
            return {"type": "partial", "turn": turn.index, "confirmed": confirmed, "tail": tail}
        case ev.TurnCommitted(turn, text):
            return {"type": "final", "turn": turn.index, "text": text}
        case ev.TurnReopened(turn):
            return {"type": "reopened", "turn": turn.index}
        case ev.ReplyStarted(reply):
            answered = reply.turn.index if reply.turn else None
            return {"type": "reply", "reply": reply.n, "turn": answered}
        case ev.ReplyText(reply, delta):
            return {"type": "text", "reply": reply.n, "delta": delta}
        case ev.WordsHeard(reply, chars):
            return {"type": "heard", "reply": reply.n, "chars": chars}
        case ev.ReplyDone(reply, status, text, heard):
            return {
                "type": "done",
                "reply": reply.n,
                "status": status.value,
                "text": text,
                "heard": heard,
            }
        case ev.TurnTraced(trace):
            return {"type": "trace", **record_of(trace, content=False)}
        case ev.CallFault(code, message, fatal):
            return {"type": "error", "code": code, "message": message, "fatal": fatal}
        case ev.CallEnded(_, reason):
            return {"type": "ended", "reason": reason.value}
        case _:
            return None
