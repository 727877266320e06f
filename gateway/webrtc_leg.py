"""WebRTC: aiortc carries packets (ICE, DTLS, SRTP, RTP); sound is ours.

Sending: a track whose `recv` hands over ready Opus packets. Receiving: our sink stands in place
of the receiver's private jitter buffer, so aiortc never decodes (tests guard the attribute). Runs
in a media worker, or in the core if there are none.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCRtpSender,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from voice_agent.clock import Clock
from voice_agent.errors import InternalError, UsageError, VoiceAgentError
from voice_agent.types import FRAME_MS, Frame, FrameFlag, Pcm16

from .config import RtcNetwork
from .media.jitter import JitterBuffer
from .media.loss import EXPECTED_PERCENT, LossWatch
from .media.opus import SILENT_BYTES, Encoder
from .media.receive import OpusReceiver
from .rtc_network import use_ports, with_public_address
from .rtc_offer import check_offer
from .workers.host import Tell
from .workers.link import Message

log = logging.getLogger(__name__)

JITTER_ATTRIBUTE = "_RTCRtpReceiver__jitter_buffer"
STATS_ATTRIBUTE = "_RTCRtpSender__stats"
REPORT_TICKS = 50  # between looks at what the receiver reports
OPUS_PARAMETERS = "minptime=10;useinbandfec=1"
DTX = "usedtx=1"
CLOCK_RATE = 48_000
TICK = CLOCK_RATE // 50
TIME_BASE = Fraction(1, CLOCK_RATE)
SEND_QUEUE = 15  # packets (300 ms); more means that the transport is stuck
TEXT_QUEUE = 1024  # texts waiting for the data channel to open
TEXT_BYTES = 1 << 20  # unsent on the data channel: the client is gone or stuck
MEDIA_IDLE_S = 10.0
LOST_TICKS = 40  # without a packet (800 ms): of a line that can be resumed, our voice waits
DRY_TICKS = 5  # without a packet what is not there is no silence of the caller's


class OpusTrack(MediaStreamTrack):  # type: ignore[misc]
    """Our voice: packets are pushed by the clock and pulled by aiortc's sender."""

    kind = "audio"

    def __init__(self) -> None:
        super().__init__()
        self._packets: deque[av.Packet] = deque(maxlen=SEND_QUEUE)
        self._wake = asyncio.Event()
        self._timestamp = 0

    def push(self, payload: bytes) -> None:
        packet = av.Packet(payload)
        packet.pts = self._timestamp
        packet.time_base = TIME_BASE
        self._timestamp += TICK
        self._packets.append(packet)
        self._wake.set()

    def pause(self) -> None:
        """20 ms for which nothing is sent."""
        self._timestamp += TICK

    async def recv(self) -> av.Packet:
        while not self._packets:
            if self.readyState != "live":
                raise MediaStreamError
            self._wake.clear()
            await self._wake.wait()
        return self._packets.popleft()

    def stop(self) -> None:
        super().stop()
        self._wake.set()


class PacketSink:
    """Takes the place of aiortc's jitter buffer: packets go to us, nothing goes to its decoder."""

    def __init__(
        self,
        receiver: OpusReceiver,
        clock: Clock,
        on_return: Callable[[], None] = lambda: None,
    ) -> None:
        """on_return: packets come again after LOST_TICKS without one."""
        self._receiver = receiver
        self._clock = clock
        self._on_return = on_return
        self.last_s = clock.now()
        self.any = False
        self.dry_ticks = 0
        """Of the clock, since the last packet: a stall of this process is none of the line."""

    def add(self, packet: Any) -> tuple[bool, None]:
        self.last_s = self._clock.now()
        dry, self.dry_ticks, self.any = self.dry_ticks, 0, True
        if dry >= LOST_TICKS:
            self._on_return()
        self._receiver.add(packet.timestamp, packet.payload, self.last_s * 1000.0)
        return False, None


def divert(receiver: RTCRtpReceiver, sink: PacketSink) -> None:
    """Raises InternalError if aiortc no longer has the attribute this relies on."""
    if not hasattr(receiver, JITTER_ATTRIBUTE):
        raise InternalError("this version of aiortc is not supported: install aiortc 1.16")
    setattr(receiver, JITTER_ATTRIBUTE, sink)


def loss_report(sender: RTCRtpSender) -> Any:
    """The receiver's newest report of our packets (`fractionLost` in 256ths); None: none yet."""
    return getattr(sender, STATS_ATTRIBUTE, {}).get(f"remote-inbound-rtp_{id(sender)}")


def asks_for_dtx(sdp: str) -> bool:
    """Whether the offer's Opus (RFC 7587) wants silence not to be sent."""
    return any(line.startswith("a=fmtp:") and DTX in line for line in sdp.splitlines())


def with_opus_parameters(sdp: str, *, dtx: bool = False) -> str:
    """The answer with in-band FEC asked for (aiortc writes no fmtp line for Opus)."""
    parameters = f"{OPUS_PARAMETERS};{DTX}" if dtx else OPUS_PARAMETERS
    lines: list[str] = []
    for line in sdp.splitlines():
        lines.append(line)
        if line.startswith("a=rtpmap:") and line.lower().endswith("opus/48000/2"):
            payload_type = line[len("a=rtpmap:") :].split(" ")[0]
            lines.append(f"a=fmtp:{payload_type} {parameters}")
    return "\r\n".join(lines) + "\r\n"


class RtcLeg:
    """Owns one peer connection from offer to close; a `gateway.workers.host.Leg`.

    Silence is not sent where the offer asks for that (`usedtx=1`).
    open: {"sdp": the offer, "channel": label of the data channel that texts go over, "resumes":
    whether the call outlives the line}.
    """

    def __init__(self, tell: Tell, clock: Clock, network: RtcNetwork) -> None:
        self._tell = tell
        self._clock = clock
        self._network = network
        self._receiver = OpusReceiver()
        self._encoder: Encoder | None = None
        self._sender: RTCRtpSender | None = None
        self._loss = LossWatch(clock.now())
        self._expected_percent = EXPECTED_PERCENT
        self._report: Any = None
        self._sent = 0
        self._paused = False
        self._track = OpusTrack()
        self._sink = PacketSink(self._receiver, clock, self._returned)
        self._resumes = self._dtx = False
        self._pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        self._label = ""
        self._channel: Any = None
        self._waiting: deque[str] = deque(maxlen=TEXT_QUEUE)
        self._connected = self._over = False

    @property
    def jitter(self) -> JitterBuffer:
        """Of the caller's sound, to be looked at."""
        return self._receiver.jitter

    async def open(self, offer: Message) -> Message:
        """{"sdp": the answer}. Raises UsageError VA463, CapacityError VA497 (ports)."""
        sdp = str(offer["sdp"])
        check_offer(sdp)
        self._resumes = bool(offer.get("resumes"))
        dtx = self._dtx = asks_for_dtx(sdp)
        self._encoder = Encoder(dtx=dtx)
        self._label = str(offer.get("channel", "events"))
        pc = self._pc
        pc.on("track", self._on_track)
        pc.on("datachannel", self._on_channel)
        pc.on("connectionstatechange", self._on_state)
        try:
            await pc.setRemoteDescription(RTCSessionDescription(sdp, "offer"))
            self._sender = pc.addTrack(self._track)
            ports, public = self._network.ports, self._network.public_address
            if ports is not None:
                use_ports(pc, ports, bool(public))
            await pc.setLocalDescription(await pc.createAnswer())
        except VoiceAgentError:
            raise
        except Exception as error:
            log.info("unreadable offer: %s", type(error).__name__)
            raise UsageError("The SDP offer could not be read.", code="VA463") from error
        answer = with_opus_parameters(pc.localDescription.sdp, dtx=dtx)
        return {"sdp": with_public_address(answer, public) if public else answer}

    def _on_track(self, remote: MediaStreamTrack) -> None:
        for receiver in self._pc.getReceivers():
            if receiver.track is remote and remote.kind == "audio":
                divert(receiver, self._sink)

    def _on_state(self) -> None:
        if self._pc.connectionState == "connected" and not self._connected:
            self._connected = True
            self._sink.last_s = self._clock.now()
            self._tell("connected")
        elif self._pc.connectionState in ("failed", "closed"):
            self._lost()

    def _lost(self) -> None:
        if not self._over:
            self._over = True
            self._tell("gone", why="lost")

    def _returned(self) -> None:
        if self._resumes and not self._over:
            self._tell("back")

    # ------------------------------------------------------------ sound

    def frame(self) -> Frame:
        if self._clock.now() - self._sink.last_s > MEDIA_IDLE_S:
            self._lost()
        frame, sink = self._receiver.frame(), self._sink
        if not self._resumes or not sink.any:
            return frame
        sink.dry_ticks += 1
        if sink.dry_ticks == LOST_TICKS:
            self._tell("lost", ms=LOST_TICKS * FRAME_MS)
        missing = sink.dry_ticks > DRY_TICKS and frame.flag is FrameFlag.SILENCE and not self._dtx
        return Frame(frame.pcm, FrameFlag.CONCEALED) if missing else frame

    def send(self, pcm: Pcm16) -> None:
        assert self._encoder is not None
        self._sent += 1
        if self._sent % REPORT_TICKS == 0:
            self._follow_loss(self._encoder)
        payload = self._encoder.encode(pcm)
        silent = len(payload) <= SILENT_BYTES
        if silent and self._paused:
            self._track.pause()
        else:
            self._track.push(payload)
        self._paused = silent

    def _follow_loss(self, encoder: Encoder) -> None:
        """Copies against loss go along where the receiver reports some, or nothing."""
        now_s, report = self._clock.now(), loss_report(self._sender)
        if report is not None and report is not self._report:
            self._loss.reported(report.fractionLost / 256.0, now_s)
        self._report = report
        percent = self._loss.expected_percent(now_s)
        if percent != self._expected_percent:
            self._expected_percent = percent
            encoder.expect_loss(percent)

    # ------------------------------------------------------------ the data channel

    def _on_channel(self, channel: Any) -> None:
        if channel.label != self._label or self._channel is not None:
            return
        self._channel = channel
        while self._waiting:
            channel.send(self._waiting.popleft())
        channel.on("message", self._on_text)

    def _on_text(self, message: str | bytes) -> None:
        if isinstance(message, str) and not self._over:
            self._tell("text", text=message)

    def told(self, message: Message) -> None:
        if message["type"] != "text":
            return
        text, channel = str(message["text"]), self._channel
        if channel is None:
            self._waiting.append(text)
        elif channel.readyState == "open":
            if channel.bufferedAmount > TEXT_BYTES:
                self._lost()
            else:
                channel.send(text)

    async def close(self) -> None:
        self._over = True
        self._track.stop()
        try:
            await self._pc.close()
        finally:
            self._receiver.close()
            if self._encoder is not None:
                self._encoder.close()
