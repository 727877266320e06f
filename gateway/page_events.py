"""The call's events as the page reads them: small JSON objects on the data channel `events`.

`type` is one of started, speech, partial, final, reopened, reply, text, heard, done, trace, error,
ended; turns and replies are named by their numbers within the call.
"""

from __future__ import annotations

from typing import Any

from voice_agent import events as ev


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
            return {
                "type": "trace",
                "turn": trace.turn.index,
                "reply": trace.reply.n if trace.reply else None,
                "outcome": trace.outcome,
                "interrupted": trace.interrupted,
                "voice_to_voice_ms": trace.voice_to_voice_ms,
                "marks": trace.offsets_ms(),
                "stages": trace.stages_ms(),
                "prompt_tokens": trace.prompt_tokens,
                "cached_tokens": trace.cached_tokens,
                "output_tokens": trace.output_tokens,
                "backend": trace.backend,
                "fallback": trace.fallback,
            }
        case ev.CallFault(code, message, fatal):
            return {"type": "error", "code": code, "message": message, "fatal": fatal}
        case ev.CallEnded(_, reason):
            return {"type": "ended", "reason": reason.value}
        case _:
            return None
