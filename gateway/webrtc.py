"""WebRTC for the page: aiortc carries packets (ICE, DTLS, SRTP, RTP); sound is ours.

Sending: a track whose `recv` hands over ready Opus packets. Receiving: our sink stands in the place
of the receiver's private jitter buffer, so aiortc never decodes (tests guard the attribute).
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from fractions import Fraction
from typing import Any

import av
from aiortc import (
    MediaStreamTrack,
    RTCConfiguration,
    RTCPeerConnection,
    RTCRtpReceiver,
    RTCSessionDescription,
)
from aiortc.mediastreams import MediaStreamError

from voice_agent.errors import CapacityError, InternalError, UsageError, VoiceAgentError
from voice_agent.events import EndReason, Event

from .gateway import Gateway, LiveCall
from .media.opus import Encoder
from .media.receive import OpusReceiver
from .page_events import behind_ms, page_event

log = logging.getLogger(__name__)

JITTER_ATTRIBUTE = "_RTCRtpReceiver__jitter_buffer"
OPUS_PARAMETERS = "minptime=10;useinbandfec=1"
CLOCK_RATE = 48_000
TICK = CLOCK_RATE // 50
TIME_BASE = Fraction(1, CLOCK_RATE)
SEND_QUEUE = 15  # packets (300 ms); more means that the transport is stuck
EVENT_QUEUE = 256  # events waiting for the data channel to open
EVENT_BYTES = 1 << 20  # unsent on the data channel: the page is gone or stuck
MEDIA_IDLE_S = 10.0
TAIL_S = 1.0  # the page plays its last buffered sound, then closes


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

    def __init__(self, receiver: OpusReceiver, gateway: Gateway) -> None:
        self._receiver = receiver
        self._clock = gateway.clock
        self.last_s = self._clock.now()

    def add(self, packet: Any) -> tuple[bool, None]:
        self.last_s = self._clock.now()
        self._receiver.add(packet.timestamp, packet.payload, self.last_s * 1000.0)
        return False, None


def divert(receiver: RTCRtpReceiver, sink: PacketSink) -> None:
    """Raises InternalError if aiortc no longer has the attribute this relies on."""
    if not hasattr(receiver, JITTER_ATTRIBUTE):
        raise InternalError("this version of aiortc is not supported: install aiortc 1.16")
    setattr(receiver, JITTER_ATTRIBUTE, sink)


def with_opus_parameters(sdp: str) -> str:
    """The answer with in-band FEC asked for (aiortc writes no fmtp line for Opus)."""
    lines: list[str] = []
    for line in sdp.splitlines():
        lines.append(line)
        if line.startswith("a=rtpmap:") and line.lower().endswith("opus/48000/2"):
            payload_type = line[len("a=rtpmap:") :].split(" ")[0]
            lines.append(f"a=fmtp:{payload_type} {OPUS_PARAMETERS}")
    return "\r\n".join(lines) + "\r\n"


def check_offer(sdp: str) -> None:
    """UsageError naming what the page's offer lacks."""
    if "m=audio" not in sdp:
        raise UsageError("The SDP offer has no audio: add a microphone track.", code="VA463")
    if "opus/48000" not in sdp.lower():
        raise UsageError("The SDP offer has no Opus.", code="VA463")


class RtcCall:
    """Owns one peer connection and the call on it, from offer to clean close."""

    def __init__(self, gateway: Gateway, sdp: str, agent: str | None) -> None:
        self._gateway = gateway
        self._sdp = sdp
        self._agent = agent
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._connected = asyncio.Event()
        self._gone = asyncio.Event()
        self._channel: Any = None
        self._waiting: deque[str] = deque(maxlen=EVENT_QUEUE)
        self._live: LiveCall | None = None
        self._page_hung_up = False

    async def run(self) -> None:
        """The whole call. Never raises; what goes wrong before the answer is set on `answer`."""
        try:
            with self._gateway.admit("webrtc") as live:
                self._live = live
                live.on_hang_up.append(self._gone.set)
                await self._connect_and_talk(live)
        except VoiceAgentError as error:
            self._fail(error)
        except Exception:
            log.exception("a WebRTC call failed")
            self._fail(InternalError("The call could not be set up.", code="VA464"))

    def _fail(self, error: VoiceAgentError) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
        elif not isinstance(error, CapacityError):
            log.warning("call ended by an error", extra={"code": error.code})

    async def _connect_and_talk(self, live: LiveCall) -> None:
        if self._agent is not None and self._agent not in self._gateway.stack.agent_names():
            raise UsageError(f"There is no agent {self._agent[:64]!r} here.", code="VA465")
        check_offer(self._sdp)
        receiver = OpusReceiver()
        encoder = Encoder()
        track = OpusTrack()
        sink = PacketSink(receiver, self._gateway)
        pc = RTCPeerConnection(RTCConfiguration(iceServers=[]))
        try:
            self.answer.set_result(await self._negotiate(pc, track, sink))
            try:
                async with asyncio.timeout(self._gateway.config.connect_timeout_s):
                    await _first(self._connected, self._gone)
            except TimeoutError:
                pass
            if not self._connected.is_set():
                live.reason = EndReason.TRANSPORT_LOST
                return
            await self._talk(live, receiver, encoder, track, sink)
        finally:
            track.stop()
            await pc.close()
            receiver.close()
            encoder.close()

    async def _negotiate(self, pc: RTCPeerConnection, track: OpusTrack, sink: PacketSink) -> str:
        def on_track(remote: MediaStreamTrack) -> None:
            for peer_receiver in pc.getReceivers():
                if peer_receiver.track is remote and remote.kind == "audio":
                    divert(peer_receiver, sink)

        def on_channel(channel: Any) -> None:
            if channel.label == "events":
                self._adopt(channel)

        def on_state() -> None:
            if pc.connectionState == "connected":
                self._connected.set()
            elif pc.connectionState in ("failed", "closed"):
                self._gone.set()

        pc.on("track", on_track)
        pc.on("datachannel", on_channel)
        pc.on("connectionstatechange", on_state)
        try:
            await pc.setRemoteDescription(RTCSessionDescription(self._sdp, "offer"))
        except Exception as error:
            log.info("unreadable offer: %s", type(error).__name__)
            raise UsageError("The SDP offer could not be read.", code="VA463") from error
        pc.addTrack(track)
        await pc.setLocalDescription(await pc.createAnswer())
        return with_opus_parameters(pc.localDescription.sdp)

    async def _talk(
        self,
        live: LiveCall,
        receiver: OpusReceiver,
        encoder: Encoder,
        track: OpusTrack,
        sink: PacketSink,
    ) -> None:
        gateway = self._gateway
        call = live.call = gateway.stack.open_call(self._agent, self._on_event, 0)
        sink.last_s = gateway.clock.now()
        guard = gateway.echo_guard(gateway.config.echo.page, live)

        def tick() -> None:
            frame = receiver.frame()
            gateway.count_frame(frame)
            call.hear(guard.heard(frame) if guard is not None else frame)
            pcm = call.tick().pcm
            track.push(encoder.encode(pcm))
            if guard is not None:
                guard.sent(pcm)
                guard.tick()
            if gateway.clock.now() - sink.last_s > MEDIA_IDLE_S:
                self._gone.set()

        async with asyncio.TaskGroup() as group:
            talk = group.create_task(call.run())
            gone = group.create_task(self._gone.wait())
            leave = gateway.pacer.join(tick, lambda fault: live.hang_up(EndReason.SERVER_ERROR))
            try:
                await asyncio.wait({talk, gone}, return_when=asyncio.FIRST_COMPLETED)
                if not talk.done():
                    lost = EndReason.TRANSPORT_LOST
                    call.hang_up(EndReason.CALLER_HUNG_UP if self._page_hung_up else lost)
                    live.reason = await talk
                else:
                    live.reason = talk.result()
                    await asyncio.wait({gone}, timeout=TAIL_S)
            finally:
                leave()
                gone.cancel()

    # ------------------------------------------------------------ the data channel

    def _adopt(self, channel: Any) -> None:
        self._channel = channel
        while self._waiting:
            channel.send(self._waiting.popleft())

        def on_message(message: str | bytes) -> None:
            try:
                data = json.loads(message)
            except ValueError:
                return
            if not isinstance(data, dict):
                return
            if data.get("type") == "hangup":
                self._page_hung_up = True
                self._gone.set()
            elif (ms := behind_ms(data)) is not None and self._live and self._live.call:
                self._live.call.playing_behind(ms)

        channel.on("message", on_message)

    def _on_event(self, event: Event) -> None:
        self._gateway.observe(event)
        data = page_event(event)
        if data is None:
            return
        text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        channel = self._channel
        if channel is None:
            self._waiting.append(text)
        elif channel.readyState == "open":
            if channel.bufferedAmount > EVENT_BYTES:
                self._gone.set()
            else:
                channel.send(text)


async def _first(*events: asyncio.Event) -> None:
    """Until one of them is set."""
    async with asyncio.TaskGroup() as group:
        waits = [group.create_task(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
