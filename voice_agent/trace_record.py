"""One turn as plain data: what JSON lines, spans, the page and `talk --json` are all made of."""

from __future__ import annotations

from typing import Any

from .trace import TurnTrace

CONTENT = ("transcript", "reply_text", "heard")
"""What was said, by both; empty strings unless content is allowed (`privacy.content`)."""


def record_of(trace: TurnTrace, *, content: bool, unix_s: float | None = None) -> dict[str, Any]:
    """JSON-ready. Times are ms after the caller's last voiced sample, or after the first mark of a
    turn without one.

    unix_s: the Unix time at which the call's clock was 0; the record then has `zero_unix_s`.
    """
    record: dict[str, Any] = {
        "call": trace.turn.call,
        "agent": trace.agent,
        "turn": trace.turn.index,
        "revision": trace.turn.revision,
        "reply": trace.reply.n if trace.reply is not None else None,
        "outcome": trace.outcome,
        "interrupted": trace.interrupted,
        "model": trace.model,
        "backend": trace.backend,
        "fallback": trace.fallback,
        "prompt_version": trace.prompt_version,
        "voice_to_voice_ms": _rounded(trace.voice_to_voice_ms),
        "lateness_ms": _rounded(trace.lateness_ms),
        "marks": trace.offsets_ms(),
        "stages": trace.stages_ms(),
        "decisions": _decisions(trace),
        "tools": _tools(trace),
        "partials": trace.partials,
        "confirmed_words": trace.confirmed_words_at_end,
        "prompt_tokens": trace.prompt_tokens,
        "cached_tokens": trace.cached_tokens,
        "output_tokens": trace.output_tokens,
        "wasted_tokens": trace.wasted_tokens,
        "wasted_voice_ms": trace.wasted_voice_ms,
        "unheard_voice_ms": trace.unheard_voice_ms,
        "holes": trace.holes,
        "echo": trace.echo,
        "early_tokens": trace.early_tokens,
        "taken_back_tokens": trace.taken_back_tokens,
        "early_refused": trace.early_refused,
        "clauses": trace.clauses,
        "reply_words": len(trace.reply_text.split()),
        "heard_words": len(trace.heard.split()),
        **{name: getattr(trace, name) if content else "" for name in CONTENT},
    }
    if unix_s is not None:
        record["zero_unix_s"] = round(unix_s + trace.zero_s, 4)
    return record


def _decisions(trace: TurnTrace) -> list[dict[str, Any]]:
    return [
        {
            "what": d.what,
            "turn": d.turn.index,
            "revision": d.turn.revision,
            "at_ms": trace.offset_ms(d.at_s),
            "cause": d.cause,
            "why": dict(d.why),
        }
        for d in trace.decisions
    ]


def _tools(trace: TurnTrace) -> list[dict[str, Any]]:
    return [
        {
            "name": tool.name,
            "outcome": tool.outcome,
            "at_ms": trace.offset_ms(tool.began_s),
            "took_ms": round(tool.took_ms, 1),
        }
        for tool in trace.tools
    ]


def _rounded(ms: float | None) -> float | None:
    return None if ms is None else round(ms, 1)
