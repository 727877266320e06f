"""The protocol's turn detection in the house's terms."""

from __future__ import annotations

from dataclasses import replace

from voice_agent.endpointing import PRESETS, TurnTaking

from .client_events import SemanticVad, ServerVad

_EAGERNESS = {"low": "patient", "medium": "balanced", "auto": "balanced", "high": "quick"}


def turn_taking(detection: ServerVad | SemanticVad) -> TurnTaking:
    """semantic_vad: silence scaled by how complete the turn sounds. server_vad: fixed silence.

    threshold is the probability of voice that starts speech. prefix_padding_ms needs no setting:
    audio from before the onset is always kept.
    """
    if isinstance(detection, SemanticVad):
        return PRESETS[_EAGERNESS[detection.eagerness]]
    taking = PRESETS["balanced"]
    if detection.silence_duration_ms is not None:
        silence = detection.silence_duration_ms
        taking = replace(
            taking,
            pause_ms=min(taking.pause_ms, silence),
            min_silence_ms=silence,
            max_silence_ms=silence,
            prepare_ms=silence,
        )
    if detection.threshold is not None:
        start = min(0.95, max(0.05, detection.threshold))
        taking = replace(taking, start_threshold=start, end_threshold=max(0.02, start - 0.15))
    return taking
