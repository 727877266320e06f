"""Our own voice taken out of what a caller's line sends: WebRTC's canceller in the media tick.

Sits between the transport and `Call.hear`, before voice activity detection. It is given exactly the
frames that were sent, at the time the caller's side plays them, and pairs one with each frame of
the line: media time against media time, so bursts and jitter of the network do not move the echo.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np

from voice_agent.own_words import Echo
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, OUT_RATE, SILENT_IN, Frame, Pcm16

from .echo_filter import EchoFilter
from .echo_probe import LAG_FRAMES, EchoPath, EchoProbe
from .resample import Resampler

HALF = IN_FRAME // 2  # the canceller works on 10 ms
CUSHION = 25  # frames of ours that may wait for the line's; more means that it stands still
SLACK_FRAMES = 250  # of the line, in which frames of ours that always waited are one too many
FOUND_ALONE_MS = 240.0  # delays up to here (and some beyond) the canceller finds by itself
LEFT_TO_FIND_MS = 120.0
LEFT_TO_LEARN_MS = 30.0  # of the delay, to the filter: it was measured to the loudest sound
LEARNS_FROM_FRAMES, LEARNS_TIMES = 50, 3  # what was heard before an echo was found
CATCHES_UP = 12  # frames that the filter learns from in one tick, so that no tick takes long
PAST_FRAMES = LAG_FRAMES + LEARNS_FROM_FRAMES + 1
ALL_OURS = 0.1  # of a frame's power is left without our voice: the caller is silent
GIVEN_UP_FRAMES = 150  # of an echo that was found and can't be predicted: the caller is heard


class EchoMode(StrEnum):
    OFF = "off"
    ON = "on"  # cancels until it is known that there is no echo
    AUTO = "auto"  # cancels once an echo was found


def load() -> None:
    """Import the library (0.3 s, 22 MB, four idle threads) before a call has to wait for it."""
    import livekit.rtc.apm  # noqa: F401


class Canceller:
    """WebRTC's AEC3 for one line."""

    def __init__(self) -> None:
        from livekit.rtc.apm import AudioProcessingModule
        from livekit.rtc.audio_frame import AudioFrame

        self._apm: Any = AudioProcessingModule(echo_cancellation=True)
        self._frame: Any = AudioFrame

    def process(self, sent: Pcm16, heard: Pcm16) -> Pcm16:
        """int16 [320] at 16 kHz each; returns `heard` without the echo of what was sent so far."""
        out = np.empty(IN_FRAME, np.int16)
        for at in (0, HALF):
            ours = self._frame(bytearray(sent[at : at + HALF].tobytes()), IN_RATE, 1, HALF)
            self._apm.process_reverse_stream(ours)
            data = bytearray(heard[at : at + HALF].tobytes())
            self._apm.process_stream(self._frame(data, IN_RATE, 1, HALF))
            out[at : at + HALF] = np.frombuffer(data, np.int16)
        return out


class Reference:
    """Frames of ours waiting for the line's frame of the same time. Pure, bounded.

    A frame of the line that finds none waiting (a burst, a faster clock) is paired with silence,
    which leaves a cushion for the next burst. A cushion that is never used (a slower clock) is
    taken back, and a line that stood still starts anew.
    """

    def __init__(self) -> None:
        self._waiting: deque[Pcm16] = deque()
        self._past: deque[Pcm16] = deque([SILENT_IN] * PAST_FRAMES, maxlen=PAST_FRAMES)
        self._least = CUSHION
        self._popped = 0

    def push(self, pcm: Pcm16) -> None:
        self._waiting.append(pcm)

    def pop(self) -> Pcm16:
        """What is sent at the time of the line's next frame; int16 [320]."""
        if len(self._waiting) > CUSHION:
            while len(self._waiting) > 1:
                self._past.append(self._waiting.popleft())
        self._past.append(self._waiting.popleft() if self._waiting else SILENT_IN)
        self._least = min(self._least, len(self._waiting))
        self._popped += 1
        if self._popped == SLACK_FRAMES:
            for _ in range(self._least - 1):
                self._past.append(self._waiting.popleft())
            self._least, self._popped = CUSHION, 0
        return self._past[-1]

    def ago(self, n: int) -> Pcm16:
        """What was sent n < PAST_FRAMES frames before that; int16 [320]."""
        return self._past[-1 - n]


@dataclass(frozen=True, slots=True)
class EchoReport:
    """What was decided for a call. after_ms: of our own speech, when it was."""

    mode: EchoMode
    verdict: Echo = Echo.UNKNOWN
    path: EchoPath | None = None
    after_ms: int = 0

    @property
    def cancelling(self) -> bool:
        if self.verdict is Echo.UNKNOWN:
            return self.mode is EchoMode.ON
        return self.verdict is Echo.FOUND

    def __str__(self) -> str:
        """For the trace: `auto: found 140 ms, -6 dB after 1000 ms`."""
        found = f" {self.path.delay_ms:.0f} ms, {self.path.level_db:.0f} dB" if self.path else ""
        after = f" after {self.after_ms} ms" if self.verdict is not Echo.UNKNOWN else ""
        return f"{self.mode}: {self.verdict}{found}{after}"


class EchoGuard:
    """One line's defence against our own echo.

    `sent` every frame that leaves, `tick` once per 20 ms of the clock, `heard` for every frame of
    the line. What is heard of a frame:

    * before a verdict: under `on` what the canceller leaves. Under `auto` the frame as it is; only
      in the first moments of our voice, and while it looks like an echo, a frame of which the
      canceller leaves almost nothing counts as one;
    * an echo was found: what the canceller leaves, and as soon as there is clearly more in the line
      than our echo as it is predicted, the frame less that prediction. The canceller alone would
      suppress the caller together with an echo as loud;
    * there is none: the frame as it is, and only the probe goes on.
    """

    def __init__(
        self, mode: EchoMode, tell: Callable[[EchoReport], None] = lambda report: None
    ) -> None:
        """tell: called with every new report, the first one apart."""
        if mode is EchoMode.OFF:
            raise ValueError("a line without a defence needs no guard")
        self.report = EchoReport(mode)
        self._tell = tell
        self._probe = EchoProbe()
        self._canceller: Canceller | None = Canceller()
        self._canceller_late = 0  # frames that its reference is held back
        self._filter: EchoFilter | None = None
        self._filter_late = 0
        self._to_learn: deque[tuple[Pcm16, Pcm16]] = deque()  # ours and the line's
        self._n_found = 0  # frames since an echo was found
        self._lately: deque[Pcm16] = deque(maxlen=LEARNS_FROM_FRAMES)
        self._resampler = Resampler(OUT_RATE, IN_RATE)
        self._to_play: deque[Pcm16] = deque()
        self._reference = Reference()

    def sent(self, pcm: Pcm16) -> None:
        """One frame that leaves now, in playing order; int16 [480] at 24 kHz."""
        self._to_play.append(pcm)

    def cut(self) -> None:
        """What was sent and not yet played will not be: the caller's side was told to drop it."""
        self._to_play.clear()

    def tick(self) -> None:
        """20 ms pass at the caller: the next frame sent is played, or silence."""
        if self._to_play:
            self._reference.push(self._resampler.push(self._to_play.popleft()))
        else:
            self._reference.push(SILENT_IN)

    def heard(self, frame: Frame) -> Frame:
        """The frame without our voice, if that is being cancelled."""
        ours = self._reference.pop()
        self._probe.push(ours, frame.pcm)
        self._decide()
        if self._canceller is None:
            self._lately.append(frame.pcm)
            return frame
        clean = self._canceller.process(self._reference.ago(self._canceller_late), frame.pcm)
        if self._filter is not None:
            return replace(frame, pcm=self._without_echo(self._filter, frame.pcm, clean))
        self._lately.append(frame.pcm)
        if self.report.mode is EchoMode.ON or self._looks_like_echo(frame.pcm, clean):
            return replace(frame, pcm=clean)
        return frame

    def _looks_like_echo(self, heard: Pcm16, clean: Pcm16) -> bool:
        may = self._probe.blank or self._probe.perhaps
        return may and _power(clean) < ALL_OURS * _power(heard)

    def _without_echo(self, predicts: EchoFilter, heard: Pcm16, clean: Pcm16) -> Pcm16:
        self._n_found += 1
        self._to_learn.append((self._reference.ago(self._filter_late), heard))
        for _ in range(min(CATCHES_UP, len(self._to_learn))):
            left = predicts.push(*self._to_learn.popleft())
        if self._to_learn:
            return clean
        knows = predicts.learnt or self._n_found > GIVEN_UP_FRAMES
        return left if knows and predicts.near_end else clean

    def _decide(self) -> None:
        probe = self._probe
        if probe.verdict is self.report.verdict:
            return
        after_ms = probe.speech_frames * FRAME_MS
        self.report = EchoReport(self.report.mode, probe.verdict, probe.path, after_ms)
        if probe.path is None:
            self._canceller = None
        else:
            self._found(probe.path)
        self._tell(self.report)

    def _found(self, path: EchoPath) -> None:
        if path.delay_ms > FOUND_ALONE_MS:
            self._canceller_late = int((path.delay_ms - LEFT_TO_FIND_MS) // FRAME_MS)
            self._canceller = Canceller()
        elif self._canceller is None:
            self._canceller = Canceller()
        self._filter_late = max(0, int((path.delay_ms - LEFT_TO_LEARN_MS) // FRAME_MS))
        self._filter = EchoFilter()
        past = [
            (self._reference.ago(len(self._lately) - n + self._filter_late), heard)
            for n, heard in enumerate(self._lately)
        ]
        self._to_learn = deque(past * LEARNS_TIMES)


def _power(pcm: Pcm16) -> float:
    return float(np.square(pcm.astype(np.float32)).mean())
