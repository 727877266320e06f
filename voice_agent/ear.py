"""One call's ear: frames in, endpointing edges out, and the audio of the utterance being spoken.

Owns media time. Media time is samples received (or filled), never the wall clock; `clock_at` maps a
sample to the call's clock for deadlines and traces.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

import numpy as np

from .clock import Clock
from .endpointing import Edge, EdgeKind, Endpointer
from .stt.streaming import PRE_ROLL_MS, Utterance
from .types import IN_FRAME, IN_RATE, SILENT_IN, Frame, FrameFlag, Pcm16, PcmF32
from .vad import WINDOW, VadService, VadWindow
from .voice_level import DULL_TILT_DB, QUIET_DB, VoiceLevel, tilt_db

SMART_TURN_S = 8
INBOX_FRAMES = 500  # 10 s; full means the caller sends faster than we hear, and the oldest goes
POLL_S = 0.25
FADE_DB = 30.0  # this far below the utterance's loudest window is silence, whatever the detector
FADED_PROB = 0.1  # still says: its recurrent state hears a voice 60-120 ms longer than there is one
LOUDER, QUIETER = 0.5, 0.2  # how much a turn tells of how loud the caller is
FULL_SCALE_DB = 20.0 * math.log10(1 << 15)
STALL_S = 1.0  # media silence that a stopped sender is turned into, so that no turn hangs


class Ear:
    """hear() from the transport, run() as a task of the call; on_edge is called in media order."""

    def __init__(
        self,
        vad: VadService,
        endpointer: Endpointer,
        clock: Clock,
        on_edge: Callable[[Edge], None],
        on_window: Callable[[VadWindow], None],
    ) -> None:
        self._stream = vad.open()
        self.endpointer = endpointer
        self._clock = clock
        self._on_edge = on_edge
        self._on_window = on_window
        self._inbox: deque[Frame] = deque()
        self._wake = asyncio.Event()
        self._next_look: asyncio.TimerHandle | None = None
        self._recent: deque[Pcm16] = deque(maxlen=SMART_TURN_S * IN_RATE // IN_FRAME)
        self._anchor_s: float | None = None
        self._last_arrival_s = clock.now()
        self.samples = 0  # media time heard (processed) so far
        self._arrived = 0  # media time received so far
        self.dropped_frames = 0
        self.utterance: Utterance | None = None
        self.muted = False
        self.lost = False  # the line is: nothing is heard, and media time stands still
        self._loudest = 0.0  # mean square of the loudest window of the speech being heard
        self._spoken = 0.0  # that of the speech heard last
        self._usual_db: float | None = None  # of the caller's turns
        self._usual_tilt_db: float | None = None  # likewise
        self._level = VoiceLevel()  # of the speech being heard

    @property
    def now_ms(self) -> int:
        return self.samples * 1000 // IN_RATE

    def clock_at(self, sample: int) -> float:
        """Seconds of the call's clock at which media sample `sample` was spoken."""
        anchor = self._anchor_s if self._anchor_s is not None else self._clock.now()
        return anchor + sample / IN_RATE

    def hear(self, frame: Frame) -> None:
        """Never blocks. Past the bound the oldest frame is dropped and counted."""
        if frame.pcm.shape != (IN_FRAME,) or frame.pcm.dtype != np.int16:
            raise ValueError(
                f"a frame is int16 [{IN_FRAME}], got {frame.pcm.dtype} {frame.pcm.shape}"
            )
        if self.lost:
            return
        if len(self._inbox) >= INBOX_FRAMES:
            self._inbox.popleft()
            self.dropped_frames += 1
        self._inbox.append(frame)
        now = self._clock.now()
        self._last_arrival_s = now
        self._arrived += IN_FRAME
        # The earliest arrival is the truest: jitter only makes frames late. A jump of over a second
        # means that media time stood still (a paused sender), so the map starts anew.
        anchor = now - self._arrived / IN_RATE
        if self._anchor_s is None or anchor < self._anchor_s or anchor > self._anchor_s + STALL_S:
            self._anchor_s = anchor
        self._wake.set()

    async def run(self) -> None:
        self._look_for_stall()
        try:
            while True:
                while self._inbox:
                    await self.process(self._inbox.popleft())
                self._wake.clear()
                await self._wake.wait()
        finally:
            if self._next_look is not None:
                self._next_look.cancel()
            self._stream.close()

    def _look_for_stall(self) -> None:
        """A timer beside the frames, not one for each of them."""
        self._next_look = asyncio.get_running_loop().call_later(POLL_S, self._look_for_stall)
        stalled = self._clock.now() - self._last_arrival_s > STALL_S
        if stalled and self.endpointer.in_speech and not self.lost and not self._inbox:
            self._inbox.extend([Frame(SILENT_IN, FrameFlag.SILENCE)] * 25)
            self._arrived += 25 * IN_FRAME
            self._wake.set()

    async def process(self, frame: Frame) -> None:
        """Judge one frame now. `run` does this with every frame heard, in order."""
        if self.muted:
            frame = Frame(SILENT_IN, FrameFlag.SILENCE)
        self._recent.append(frame.pcm)
        self.samples += IN_FRAME
        if self.utterance is not None:
            self.utterance.append(frame.pcm)
        for window in await self._stream.push(frame):
            prob = min(window.prob, FADED_PROB) if self._has_faded(window) else window.prob
            edges = self.endpointer.on_window(prob, window.end_sample, concealed=window.concealed)
            for edge in edges:
                if edge.kind is EdgeKind.PAUSE:
                    since = (edge.at_sample - edge.sample) // WINDOW
                    self.endpointer.set_fall(self._level.fall_db(since))
                self._on_edge(edge)
            self._on_window(window)

    def _has_faded(self, window: VadWindow) -> bool:
        """The window is far quieter than this utterance's voice. In noise that never happens, and
        the detector alone decides."""
        power = window.power * (1 << 30)  # of int16 samples
        if not self.endpointer.in_speech:
            self._loudest = power
            self._level.clear()
            return False
        self._loudest = self._spoken = max(self._loudest, power)
        self._level.hear(power)
        return power < self._loudest * 10 ** (-FADE_DB / 10)

    @property
    def below_db(self) -> float:
        """How much quieter the speech heard last is than the caller's turns; before the first of
        them, than quiet callers are."""
        usual_db = FULL_SCALE_DB + QUIET_DB if self._usual_db is None else self._usual_db
        return max(0.0, usual_db - _db(self._spoken))

    def duller_db(self, onset_sample: int) -> float:
        """How much duller what was heard since `onset_sample` is than the caller's turns, likewise;
        0 where there is too little of it to tell."""
        usual_db = DULL_TILT_DB if self._usual_tilt_db is None else self._usual_tilt_db
        now_db = tilt_db(self.recent(self.samples - onset_sample))
        return 0.0 if now_db is None else max(0.0, usual_db - now_db)

    @property
    def knows_voice(self) -> bool:
        """The caller has had a turn."""
        return self._usual_db is not None

    def learn_voice(self, onset_sample: int) -> None:
        """The speech heard last, since `onset_sample`, was the caller's turn."""
        now_db, now_tilt_db = _db(self._spoken), tilt_db(self.recent(self.samples - onset_sample))
        if self._usual_db is None:
            self._usual_db = now_db
        weight = LOUDER if now_db > self._usual_db else QUIETER
        self._usual_db += weight * (now_db - self._usual_db)
        if now_tilt_db is not None:
            usual_db = now_tilt_db if self._usual_tilt_db is None else self._usual_tilt_db
            self._usual_tilt_db = usual_db + weight * (now_tilt_db - usual_db)

    def set_completion(self, p_complete: float) -> None:
        """The end-of-turn model's estimate of the current pause; it may end the turn at once."""
        self.endpointer.set_completion(p_complete)
        self.poll()

    def set_model(self, log_odds: float) -> None:
        """The language model's estimate of the current pause; likewise."""
        self.endpointer.set_model(log_odds)
        self.poll()

    def answer_ready(self) -> None:
        """The answer that was being prepared has sound: the turn need not stay open for it."""
        self.endpointer.prepare(False)
        self.poll()

    def line_back(self) -> None:
        self.lost = False
        self._last_arrival_s = self._clock.now()
        self.poll()

    def poll(self) -> None:
        """End the turn now if what is newly known says so."""
        if self.lost:
            return
        for edge in self.endpointer.poll():
            self._on_edge(edge)

    def recent(self, n_samples: int) -> Pcm16:
        """The last n samples heard: int16 [<= n]."""
        n_frames = min(len(self._recent), -(-n_samples // IN_FRAME))
        if n_frames == 0:
            return np.zeros(0, np.int16)
        frames = [self._recent[i] for i in range(len(self._recent) - n_frames, len(self._recent))]
        return np.concatenate(frames)[-n_samples:]

    def start_utterance(self, utterance: Utterance, onset_sample: int) -> None:
        """Record from a little before the onset; what was heard since is included."""
        back = self.samples - onset_sample + PRE_ROLL_MS * IN_RATE // 1000
        utterance.append(self.recent(max(back, 0)))
        self.utterance = utterance

    def drop_utterance(self) -> None:
        self.utterance = None

    def smart_turn_window(self) -> PcmF32:
        """float32 [<= 8 s] ending now."""
        return self.recent(SMART_TURN_S * IN_RATE).astype(np.float32) / 32768.0


def _db(power: float) -> float:
    return float(10.0 * np.log10(power + 1e-9))
