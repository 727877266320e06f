"""Offers of one shape only: whatever else the media library would open sockets for is refused."""

from __future__ import annotations

import pytest

from gateway.rtc_offer import MAX_CANDIDATES, check_offer
from tests.support.fuzz import OFFER
from voice_agent.errors import UsageError

pytestmark = pytest.mark.unit

AUDIO = OFFER[: OFFER.index("m=application")]
DATA = OFFER[OFFER.index("m=application") :]


@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        OFFER.replace("\r\n", "\n"),
        AUDIO.replace("BUNDLE 0 1", "BUNDLE 0"),
        AUDIO.replace("a=group:BUNDLE 0 1\r\n", ""),
        OFFER.replace("a=sendrecv", "a=recvonly"),
        OFFER.replace("setup:actpass", "setup:active"),
        OFFER.replace("opus/48000/2", "OPUS/48000/2"),
        OFFER.replace("UDP/DTLS/SCTP webrtc-datachannel", "DTLS/SCTP 5000").replace(
            "a=sctp-port:5000", "a=sctpmap:5000 webrtc-datachannel 1024"
        ),
    ],
)
def test_a_voice_call_passes(offer: str) -> None:
    check_offer(offer)


@pytest.mark.parametrize(
    ("offer", "why"),
    [
        ("", "no audio"),
        ("v=0", "no audio"),
        (OFFER.replace("opus", "speex"), "no Opus"),
        (OFFER.replace("opus/48000/2", "opus/48000x"), "no Opus|not be read"),
        (OFFER.replace("a=rtpmap:111 opus/48000/2", "b=opus/48000"), "no Opus|not be read"),
        (OFFER.replace("v=0\r\n", "v=0\r\nm=audio\r\n"), "could not be read"),
        (AUDIO + DATA + DATA, "one audio section"),
        (AUDIO + AUDIO[AUDIO.index("m=audio") :] * 30, "one audio section"),
        (OFFER.replace("m=application", "m=video"), "one audio section|not be read"),
        (OFFER.replace("a=mid:1\r\n", ""), "a=mid"),
        (OFFER.replace("a=group:BUNDLE 0 1\r\n", ""), "BUNDLE"),
        (OFFER.replace("BUNDLE 0 1", "BUNDLE 0"), "BUNDLE"),
        (AUDIO.replace("a=mid:0", "a=mid:1"), "BUNDLE"),
        (OFFER.replace("a=mid:1", "a=mid:0"), "BUNDLE"),
        (OFFER.replace("a=ice-pwd:abcdefghijklmnopqrstuvwx\r\n", ""), "ICE|not be read"),
        (OFFER.replace("a=fingerprint:sha-256", "a=fingerprint:md5"), "fingerprint"),
        (OFFER.replace("a=setup:actpass\r\n", ""), "setup|fingerprint"),
        (OFFER.replace("a=sctp-port:5000\r\n", ""), "sctp-port"),
        (OFFER.replace("a=sendrecv", "a=inactive"), "sendrecv"),
        (
            OFFER.replace(
                "a=ice-ufrag",
                "a=candidate:1 1 udp 1 10.0.0.1 9 typ host\r\n" * MAX_CANDIDATES + "a=ice-ufrag",
            ),
            "candidates",
        ),
    ],
)
def test_what_is_refused_and_why(offer: str, why: str) -> None:
    with pytest.raises(UsageError, match=why) as caught:
        check_offer(offer)
    assert caught.value.code == "VA463"
