"""One caller: a microphone in real time, what they say and when, and what they notice.

A turn begins when the last voiced sample was *due* to be sent (media time): a sender, a server or a
network that is late does not make the wait look shorter, and a turn that is never answered counts
with the whole time it was waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .clip import FRAME, FRAME_S, RATE, Clip, Pcm, room
from .ear import Ear
from .line import Line, LineError, Refused

HANG_S = 1.2
"""So long after its last sound the agent has finished."""
STOP_QUIET_S = 0.6
"""So long without a sound, and an agent that was cut into has stopped."""
LISTEN_S = 60.0
"""To one answer, at most."""
_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Habits:
    """How one caller talks. Times are seconds.

    until_s: of the loop's clock; no turn begins later. pause_s: from the end of an answer to the
    next words. barge_in: share of the answers that are cut into, barge_in_after_s of their sound.
    turns: at most so many; all_but_last: the last of them is heard out (`listen_s` at most).
    noise: int16 [n] at 24 kHz; its owner never speaks and expects no answer.
    """

    clips: tuple[Clip, ...]
    seed: int
    until_s: float
    pause_s: tuple[float, float] = (0.2, 0.7)
    patience_s: float = 15.0
    barge_in: float = 0.0
    barge_in_after_s: tuple[float, float] = (0.5, 1.5)
    turns: int | None = None
    listen_s: float = LISTEN_S
    noise: Pcm | None = None


@dataclass(slots=True)
class Turn:
    """spoken_s: when the last voiced sample was due (loop clock). v2v_s: from there to the first
    loud sample heard; None: `early` (we were answered before we had finished), `missed` (the agent
    talked over all of it) or `stuck` (no answer). waited_s: until the answer, or until patience
    ended. stop_s: of a turn that cut into an answer, from its first voiced sample to the last sound
    of what it cut."""

    clip: str
    spoken_s: float
    v2v_s: float | None = None
    waited_s: float = 0.0
    early: bool = False
    stuck: bool = False
    cut_in: bool = False
    missed: bool = False
    stop_s: float | None = None


@dataclass(slots=True)
class CallLog:
    """up_s, down_s: of the loop's clock, None if the call never was up. late_s: how late frames
    were sent, those over 5 ms. lost: why the other side ended it."""

    turns: list[Turn] = field(default_factory=list)
    up_s: float | None = None
    down_s: float | None = None
    refused: str = ""
    failed: str = ""
    lost: str = ""
    frames: int = 0
    late_s: list[float] = field(default_factory=list)
    ear: Ear = field(default_factory=Ear)


class Caller:
    """Call `run` once."""

    def __init__(self, line: Line, habits: Habits) -> None:
        self.log = CallLog()
        self._line = line
        self._habits = habits
        self._rng = np.random.default_rng(habits.seed)
        self._clip: Clip | None = None
        self._position = 0
        self._begun_s: float | None = None  # when the clip's first voiced sample was due
        self._spoken_s: float | None = None  # and its last one

    async def run(self) -> CallLog:
        """Until `habits.until_s` and the end of the turn under way; never raises what the line
        does, which is in the log."""
        log, loop = self.log, asyncio.get_running_loop()
        try:
            hold_s = max(1.0, self._habits.until_s + self._habits.patience_s - loop.time())
            await self._line.open(log.ear, hold_s)
        except Refused as refusal:
            log.refused = str(refusal) or "refused"
        except LineError as error:
            log.failed = str(error)
        else:
            log.up_s = loop.time()
            microphone = asyncio.ensure_future(self._microphone())
            try:
                await self._talk()
            finally:
                log.lost = self._line.lost
                microphone.cancel()
                await asyncio.gather(microphone, return_exceptions=True)
        finally:
            await self._line.close()
            if log.up_s is not None:
                log.down_s = loop.time()
        return log

    # ------------------------------------------------------------ turns

    async def _talk(self) -> None:
        h, loop = self._habits, asyncio.get_running_loop()
        if h.noise is not None:
            await self._until(lambda: False, h.until_s)
            return
        await self._wait(0.5)
        await self._listen(h.listen_s)  # a greeting, if any
        first = int(self._rng.integers(len(h.clips)))
        cut_in = False
        while loop.time() < h.until_s and not self._line.lost:
            n = len(self.log.turns)
            if h.turns is not None and n >= h.turns:
                return
            turn = await self._say(h.clips[(first + n) % len(h.clips)], cut_in)
            if turn is None:
                return
            self.log.turns.append(turn)
            last = h.turns is not None and n + 1 >= h.turns
            cut_in = not last and not turn.stuck and bool(self._rng.random() < h.barge_in)
            if cut_in:
                await self._wait(self._rng.uniform(*h.barge_in_after_s))
            else:
                await self._listen(h.listen_s)
                await self._wait(self._rng.uniform(*h.pause_s))

    async def _say(self, clip: Clip, cut_in: bool) -> Turn | None:
        """One turn, up to its answer's first sound. None: the line was lost before it."""
        ear, loop = self.log.ear, asyncio.get_running_loop()
        self._start(clip)
        await self._until(lambda: self._spoken_s is not None, loop.time() + clip.seconds + 5.0)
        begun_s, spoken_s = self._begun_s, self._spoken_s
        if begun_s is None or spoken_s is None:
            return None
        turn = Turn(clip.name, spoken_s)
        if cut_in and ear.loud_within(begun_s, 0.3):
            turn.cut_in = True
        since_s = ear.speaking_since(spoken_s)
        turn.early = since_s is not None and since_s > begun_s
        spoke = ear.loud_within(begun_s, 0.3)
        turn.missed = spoke and ear.stopped_after(begun_s, STOP_QUIET_S) > spoken_s
        if turn.early or turn.missed:
            return turn
        give_up_s = spoken_s + self._habits.patience_s
        await self._until(lambda: ear.onset_after(spoken_s) is not None, give_up_s)
        onset_s = ear.onset_after(spoken_s)
        if turn.cut_in:
            turn.stop_s = ear.stopped_after(begun_s, STOP_QUIET_S) - begun_s
        if onset_s is None:
            if self._line.lost:
                return None
            turn.stuck, turn.waited_s = True, loop.time() - spoken_s
            return turn
        turn.v2v_s = turn.waited_s = onset_s - spoken_s
        return turn

    async def _listen(self, limit_s: float) -> None:
        """Until the agent has been quiet for a while."""
        loop = asyncio.get_running_loop()
        ear = self.log.ear
        await self._until(lambda: ear.silent_for(loop.time(), HANG_S), loop.time() + limit_s)

    async def _wait(self, seconds: float) -> None:
        await self._until(lambda: False, asyncio.get_running_loop().time() + seconds)

    async def _until(self, happened: Callable[[], bool], limit_s: float) -> None:
        """limit_s: of the loop's clock. Returns at once when the line is lost."""
        loop = asyncio.get_running_loop()
        while not happened() and not self._line.lost and loop.time() < limit_s:  # noqa: ASYNC110
            await asyncio.sleep(min(_POLL_S, limit_s - loop.time()))  # a pure ear tells nobody

    # ------------------------------------------------------------ sound

    async def _microphone(self) -> None:
        """20 ms every 20 ms, never paused; absolute times, so that errors do not add up."""
        loop = asyncio.get_running_loop()
        start_s, k = loop.time(), 0
        while not self._line.lost:
            k += 1
            due_s = start_s + k * FRAME_S
            await asyncio.sleep(max(0.0, due_s - loop.time()))
            late_s = loop.time() - due_s
            if late_s > 0.005:
                self.log.late_s.append(late_s)
            self.log.frames += 1
            await self._line.send(self._next(due_s))

    def _start(self, clip: Clip) -> None:
        self._begun_s = self._spoken_s = None
        self._clip, self._position = clip, 0

    def _next(self, due_s: float) -> Pcm:
        noise, clip = self._habits.noise, self._clip
        if noise is not None:
            at = self._position % (len(noise) - FRAME)
            self._position += FRAME
            return noise[at : at + FRAME]
        frame = room(self._rng)
        if clip is None:
            return frame
        at, self._position = self._position, self._position + FRAME
        part = clip.pcm[at : at + FRAME]
        frame[: len(part)] = part
        if at <= clip.first < at + FRAME:
            self._begun_s = due_s - FRAME_S + (clip.first - at) / RATE
        if at < clip.last <= at + FRAME:
            self._spoken_s = due_s - FRAME_S + (clip.last - at) / RATE
        if self._position >= len(clip.pcm):
            self._clip = None
        return frame
