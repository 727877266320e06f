"""Copies against loss go along where the receiver reports some, and nowhere else."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from aiortc import RTCConfiguration, RTCPeerConnection, RTCRtpSender, RTCSessionDescription

from gateway.config import RtcNetwork
from gateway.media.loss import CALM_S, EXPECTED_PERCENT, STALE_S, LossWatch
from gateway.media.opus import Encoder, has_fec
from gateway.webrtc_leg import REPORT_TICKS, STATS_ATTRIBUTE, RtcLeg, loss_report
from tests.support.clips import clip
from tests.support.rtc_peer import Microphone
from voice_agent.clock import ManualClock
from voice_agent.types import OUT_FRAME

pytestmark = pytest.mark.unit


def test_a_line_without_loss_is_trusted_after_a_while_and_until_the_first_loss() -> None:
    watch = LossWatch(0.0)
    assert watch.expected_percent(60.0) == EXPECTED_PERCENT, "nothing was reported"
    for now_s in range(5, 30, 5):
        watch.reported(0.0, float(now_s))
        assert (watch.expected_percent(float(now_s)) == 0) == (now_s >= CALM_S)
    watch.reported(1 / 256, 30.0)
    assert watch.expected_percent(30.0) == EXPECTED_PERCENT
    watch.reported(0.0, 35.0)
    assert watch.expected_percent(39.9) == EXPECTED_PERCENT
    assert watch.expected_percent(30.0 + CALM_S) == 0
    assert watch.expected_percent(35.1 + STALE_S) == EXPECTED_PERCENT, "it fell silent"


def test_the_encoder_leaves_the_copies_out_and_makes_them_again() -> None:
    encoder = Encoder()
    speech = np.repeat(clip("ps_austen_0870"), 2)[: 200 * OUT_FRAME]  # an octave lower: voiced
    copies = []
    for percent in (EXPECTED_PERCENT, 0, EXPECTED_PERCENT):
        encoder.expect_loss(percent)
        frames = speech.reshape(-1, OUT_FRAME)
        copies.append(sum(has_fec(encoder.encode(frame)) for frame in frames[20:]))
    assert copies[0] > 60
    assert copies[1] <= 1
    assert copies[2] > 60


async def test_aiortc_still_has_the_attribute_we_read() -> None:
    class Transport:
        state = "new"

    assert hasattr(RTCRtpSender("audio", Transport()), STATS_ATTRIBUTE)


async def test_what_a_receiver_reports_reaches_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    leg = RtcLeg(lambda kind, **fields: None, clock, RtcNetwork())
    pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    microphone = Microphone()
    pc.addTrack(microphone)
    told: list[int] = []
    try:
        await pc.setLocalDescription(await pc.createOffer())
        answer = await leg.open({"sdp": pc.localDescription.sdp})
        await pc.setRemoteDescription(RTCSessionDescription(answer["sdp"], "answer"))
        assert leg._encoder is not None
        monkeypatch.setattr(leg._encoder, "expect_loss", told.append)
        async with asyncio.timeout(20):
            while loss_report(leg._sender) is None:
                leg.send(np.zeros(OUT_FRAME, np.int16))
                await asyncio.sleep(0.02)
        clock.advance(CALM_S)
        for _ in range(REPORT_TICKS):
            leg.send(np.zeros(OUT_FRAME, np.int16))
        assert told == [0]
        loss_report(leg._sender).fractionLost = 12
        leg._report = None  # as if it had just come
        for _ in range(REPORT_TICKS):
            leg.send(np.zeros(OUT_FRAME, np.int16))
        assert told == [0, EXPECTED_PERCENT]
    finally:
        microphone.stop()
        await pc.close()
        await leg.close()
