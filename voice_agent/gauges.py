"""Numbers of the shared parts, by metric name: what each queue holds and how busy each stage is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .fallback import FallbackThinker

if TYPE_CHECKING:
    from .stack import Stack


def collect(stack: Stack) -> dict[str, float]:
    """Cheap enough for every scrape. Names are stable; units are in the names."""
    out: dict[str, float] = {"vad_streams": stack.vad.n_open, "vad_busy_seconds": stack.vad.busy_s}
    recognizer = stack.recognizer
    for name, attribute in (
        ("stt_waiting", "n_waiting"),
        ("stt_passes", "passes"),
        ("stt_busy_seconds", "busy_s"),
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
        }
    if isinstance(stack.thinker, FallbackThinker):
        out |= stack.thinker.gauges()
    if stack.engine is not None:
        stats = stack.engine.stats()
        for name in stats.__slots__:
            value = getattr(stats, name)
            if isinstance(value, int | float):
                out[f"engine_{name}"] = float(value)
    return out
