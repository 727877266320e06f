"""A call's line over WebRTC: an offer, an answer, then sound, and texts on the data channel.

The connection itself is a leg (webrtc_leg.py) in a media worker or in this process.
"""

from __future__ import annotations

from .gateway import Gateway
from .line_call import Way
from .rtc_side import RtcSide

TAIL_S = 1.0  # the page plays its last buffered sound, then closes


def rtc_way(gateway: Gateway, side: RtcSide, sdp: str) -> Way:
    """sdp: the offer; the answer has its own under `sdp`."""
    offer = {
        "sdp": sdp,
        "channel": side.channel,
        "echo": gateway.config.echo.page.value,
        "last_words": side.last_words,
    }
    return Way(gateway.rtc_line, offer, lead_ms=0, tail_s=TAIL_S)
