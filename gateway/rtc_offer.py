"""Whether an SDP offer can be taken, said before anything is made for it.

The media library opens sockets for every media section of an offer and leaves them open when it
stumbles over one, so it is only given offers of the one shape that a voice call has: sound in Opus,
at most one data channel, and both over one transport (BUNDLE, RFC 9143).
"""

from __future__ import annotations

from typing import Any

from aiortc.sdp import SessionDescription

from voice_agent.errors import UsageError

MAX_CANDIDATES = 64  # each is an address that we would send a check to
_SHA = frozenset(("sha-256", "sha-384", "sha-512"))


def check_offer(sdp: str) -> None:
    """UsageError VA463 naming what the offer lacks."""
    if "m=audio" not in sdp:
        raise _refused("has no audio: add a microphone track.")
    if "opus/48000" not in sdp.lower():
        raise _refused("has no Opus.")
    if sdp.count("a=candidate:") > MAX_CANDIDATES:
        raise _refused(f"names over {MAX_CANDIDATES} candidates.")
    try:
        offer = SessionDescription.parse(sdp)
    except Exception as error:  # the parser raises whatever its own code stumbles over
        raise UsageError("The SDP offer could not be read.", code="VA463") from error
    kinds = sorted(media.kind for media in offer.media)
    if kinds not in (["audio"], ["application", "audio"]):
        raise _refused("must have one audio section, at most one data channel, and nothing else.")
    for media in offer.media:
        _check_section(media)
    names = [media.rtp.muxId for media in offer.media]
    bundled = [group.items for group in offer.group if group.semantic == "BUNDLE"]
    if bundled != [names] and not (len(names) == 1 and not bundled):
        raise _refused("must carry everything over one transport: a=group:BUNDLE.")


def _check_section(media: Any) -> None:
    if not media.rtp.muxId or not media.rtp.muxId.isascii():
        raise _refused(f"has a section without a=mid: {media.kind}.")
    if media.ice is None or not (media.ice.usernameFragment and media.ice.password):
        raise _refused("has no ICE user fragment and password.")
    prints = media.dtls.fingerprints if media.dtls is not None else []
    if not any(p.algorithm.lower() in _SHA and p.value for p in prints):
        raise _refused("has no SHA-256 fingerprint.")
    if media.dtls.role not in ("auto", "client", "server"):
        raise _refused("has no a=setup.")
    if media.kind == "audio":
        _check_sound(media)
    elif media.profile != "DTLS/SCTP" and media.sctp_port is None:
        raise _refused("has a data channel without a=sctp-port.")


def _check_sound(media: Any) -> None:
    if not any(
        c.mimeType.lower() == "audio/opus" and c.clockRate == 48_000 for c in media.rtp.codecs
    ):
        raise _refused("has no Opus.")
    if media.direction not in ("sendrecv", "sendonly", "recvonly"):
        raise _refused("must send or receive sound: a=sendrecv.")


def _refused(why: str) -> UsageError:
    return UsageError(f"The SDP offer {why}", code="VA463")
