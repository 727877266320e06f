"""How much loss our encoder expects, from what the receiver reports (RTCP, RFC 3550 6.4). Pure.

A copy of the frame before in every packet (in-band FEC) takes bits from the voice and a sixth of
the encoder's work. It is made until a line has been without loss for a while, and again from the
first loss on.
"""

from __future__ import annotations

EXPECTED_PERCENT = 10
CALM_S = 10.0
STALE_S = 15.0
"""Browsers report every 5 s; a receiver that says nothing any more may be losing everything."""


class LossWatch:
    """One line's way to the receiver. Times are seconds of one clock."""

    def __init__(self, now_s: float) -> None:
        self._lossy_s = now_s
        self._heard_s: float | None = None

    def reported(self, lost: float, now_s: float) -> None:
        """lost: share of the packets since the last report."""
        self._heard_s = now_s
        if lost > 0.0:
            self._lossy_s = now_s

    def expected_percent(self, now_s: float) -> int:
        """For `Encoder.expect_loss`; 0: no copies."""
        unknown = self._heard_s is None or now_s - self._heard_s > STALE_S
        return EXPECTED_PERCENT if unknown or now_s - self._lossy_s < CALM_S else 0
