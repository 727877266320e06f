"""Numbers of the shared parts, by metric name: what each queue holds and how busy each stage is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fallback import FallbackThinker

if TYPE_CHECKING:
    from .stack import Stack


def collect(stack: Stack) -> dict[str, float]:
    """Cheap enough for every scrape. Names are stable; units are in the names."""
    out: dict[str, float] = {
        "vad_streams": stack.vad.n_open,
        "vad_busy_seconds": stack.vad.busy_s,
        "own_speech_passes_total": float(stack.own_speech_passes),
    }
    recognizer = stack.recognizer
    for name, attribute in (
        ("stt_waiting", "n_waiting"),
        ("stt_passes", "passes"),
        ("stt_busy_seconds", "busy_s"),
        ("stt_workers", "workers"),
        ("stt_missed_deadlines_total", "missed"),
    ):
        value = getattr(recognizer, attribute, None)
        if value is not None:
            out[name] = float(value)
    if stack.voices is not None:
        voice = stack.voices.stats()
        out |= {
            "voice_queued": float(voice.queued),
            "voice_busy_seconds": voice.busy_s,
            "voice_audio_seconds": voice.audio_s,
            "voice_wasted_seconds": voice.wasted_s,
            "voice_cancelled": float(voice.cancelled),
            "voice_failed": float(voice.failed),
            "voice_underrun_frames_total": float(stack.underrun_frames),
            "voice_late_pieces_total": float(voice.late_pieces),
            "voice_missed_deadlines_total": float(voice.missed),
            "voice_workers": float(voice.workers),
        }
    if stack.voice_cache is not None:
        out |= {
            "voice_cache_clauses": float(len(stack.voice_cache)),
            "voice_cache_seconds": stack.voice_cache.seconds,
            "voice_cache_hits_total": float(stack.voice_cache.hits),
            "voice_cache_refused_total": float(stack.voice_cache.refused),
        }
    out |= stack.early.gauges() | stack.early.load.gauges()
    out |= stack.noise.gauges() | stack.forecast.gauges()
    if stack.tracing is not None:
        out["trace_dropped_total"] = float(stack.tracing.dropped)
    if stack.history is not None:
        out |= stack.history.gauges()
    if isinstance(stack.thinker, FallbackThinker):
        out |= stack.thinker.gauges()
    if stack.engine is not None:
        stats = stack.engine.stats()
        for name in stats.__slots__:
            value = getattr(stats, name)
            if isinstance(value, int | float):
                out[f"engine_{name}"] = float(value)
    return out


def predicted_wait_s(stack: Stack) -> float:
    """How long work asked for now waits for other work: of the event loop, of recognition, of the
    engine and of the voice, one after the other as a turn needs them."""
    wait_s = stack.forecast.lag.mean_s + float(getattr(stack.recognizer, "wait_s", 0.0))
    if stack.engine is not None and (stats := stack.engine.stats()).waiting:
        wait_s += stats.waiting * stats.step_ms_p50 / 1000.0
    if stack.voices is not None:
        wait_s += stack.voices.stats().wait_s
    return wait_s
