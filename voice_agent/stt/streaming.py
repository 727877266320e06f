"""One caller utterance, transcribed while it is spoken."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, replace

import numpy as np

from voice_agent.audio import to_float
from voice_agent.errors import CapacityError
from voice_agent.types import IN_FRAME, IN_RATE, Pcm16

from .agreement import Agreement, split_at
from .base import Demoter, Promoter, Recognizer, Transcript
from .jobs import SupersededError
from .noise import YIELD_S, CallNoise

PRE_ROLL_MS = 500  # audio before the onset that a first word needs: without it "and" is lost
SETTLE_S = 12.0  # from here a pause that the caller speaks past settles its words
CUT_S = 20.0  # from here audio is cut at its quietest place
CUT_FROM_S, CUT_MARGIN_S = 8.0, 4.0  # where that place may lie: from the start, to the end
MAX_BUFFER_S = 60.0  # audio kept when nobody transcribes it
KEEP_S = 0.1  # silence left in front of the next stretch
PEAK_RATIO, FLOOR_RMS = 0.1, 10 ** (-50 / 20) * 32768  # a frame this loud may hold voice


@dataclass(slots=True)
class _Pass:
    """A pass under way. covers: end sample it sees. done resolves whatever its outcome."""

    covers: int
    epoch: int
    done: asyncio.Future[None]


class Utterance:
    """Audio in, words out: confirmed words never change until `reset`.

    `append` every frame from a little before the onset on, pauses included. `transcribe` runs a
    pass over what is there; several may be awaited at once. Memory is bounded by `MAX_BUFFER_S`:
    settled audio is dropped at pauses, so a long monologue costs no more per pass than a sentence.

    All positions are samples since `reset`. Runs on one event loop.
    """

    def __init__(self, recognizer: Recognizer, noise: CallNoise | None = None) -> None:
        """noise: what its call's passes may cost while they find nothing; None: whatever."""
        self._recognizer = recognizer
        self._noise = noise
        self._epoch = 0
        self._begin()

    def _begin(self) -> None:
        self._buffer = np.zeros(8 * IN_RATE, np.int16)
        self._start = 0  # sample number of the buffer's first sample
        self._end = 0
        self._voiced_end = 0
        self._peak = 0.0
        self._settled: tuple[str, ...] = ()
        self._agreement = Agreement()
        self._seen_end = 0  # what the newest applied pass covered
        self._at_pause = False  # that pass ended in silence, so all its words are whole
        self._running: _Pass | None = None
        self._went_on = 0  # times that the caller spoke past a pause
        self.passes = 0
        self.reused = 0
        self.dropped_samples = 0
        self.compute_s = 0.0
        self._no_speech = 0.0
        self._logprob = 0.0

    @property
    def n_samples(self) -> int:
        """Samples appended since `reset`."""
        return self._end

    @property
    def held_samples(self) -> int:
        """Samples kept in memory."""
        return self._end - self._start

    @property
    def current(self) -> Transcript:
        """The newest words, without waiting."""
        words = self._settled + self._agreement.words
        n_confirmed = len(self._settled) + self._agreement.n_confirmed
        return Transcript(
            words, n_confirmed, self._seen_end / IN_RATE, self.compute_s, self._no_speech,
            logprob=self._logprob,
        )  # fmt: skip

    @property
    def is_fresh(self) -> bool:
        """The newest words cover all voice so far: a final would cost nothing."""
        return self.passes > 0 and self._seen_end >= self._voiced_end

    def append(self, pcm: Pcm16, *, voiced: bool | None = None) -> None:
        """Add int16 [n] at 16 kHz. voiced: the voice detector's opinion; None: by loudness."""
        if voiced is None:
            voiced = self._sounds_voiced(pcm)
        if voiced:
            if self._at_pause and self._seen_end - self._start >= SETTLE_S * IN_RATE:
                self._settle_at_pause()
            self._at_pause = False
        self._store(pcm)
        if voiced:
            self._voiced_end = self._end
        elif self._voiced_end == 0:  # nobody has spoken yet
            lead = PRE_ROLL_MS * IN_RATE // 1000
            if self.held_samples > lead:
                self._drop_to(self._end - lead)

    async def transcribe(
        self,
        final: bool = False,
        deadline_s: float = 0.0,
        *,
        pause: bool = False,
        surely: bool = False,
    ) -> Transcript:
        """The words of all audio so far.

        pause: asked at a VAD pause; such a pass is ordered like a final, because it becomes the
        final if no more voice comes: a final asked later then returns at once. final: every word is
        confirmed. surely: it sounds so much like speech that it is heard whatever its call's noise
        has had. When the recogniser is full, a newer request replaced this one, or the call's
        noise has had its ration, a partial returns the newest words known. Raises InternalError
        (model failed) and, for finals, CapacityError.
        """
        epoch, wanted, went_on = self._epoch, self._voiced_end, self._went_on
        urgent = final or pause
        if final and self.is_fresh:
            self.reused += 1
        while epoch == self._epoch and (self.passes == 0 or self._seen_end < wanted):
            running = self._running
            if running is not None and running.covers >= wanted:
                if urgent and not self._suspect and isinstance(self._recognizer, Promoter):
                    self._recognizer.promote(self)
                await asyncio.shield(running.done)
            elif not final and not surely and not await self._may_pass(urgent):
                break
            else:
                try:
                    await self._pass(urgent, deadline_s)
                except SupersededError:
                    pass
                except CapacityError:
                    if final:
                        raise
                    break
            if not urgent or (not final and self._went_on > went_on):
                break
        if not final:
            return self.current
        done = self.current
        return replace(done, n_confirmed=len(done.words), final=True)

    def go_on(self) -> None:
        """The caller spoke past the pause: a pass that waits for it is a final no more, and the
        next one takes its place."""
        self._went_on += 1
        if isinstance(self._recognizer, Demoter):
            self._recognizer.demote(self)

    def reset(self) -> None:
        """Forget everything; passes under way are ignored when they come back."""
        self._epoch += 1
        self._begin()

    @property
    def _suspect(self) -> bool:
        return self._noise is not None and self._noise.suspect

    async def _may_pass(self, urgent: bool) -> bool:
        """Wait for the ration of a call in which nothing was found; False: no pass for now."""
        if self._noise is None:
            return True
        epoch, wait_s = self._epoch, self._noise.claim(patient=urgent)
        if wait_s:
            await asyncio.sleep(wait_s)
        return wait_s is not None and epoch == self._epoch

    async def _pass(self, urgent: bool, deadline_s: float) -> None:
        if self._suspect:  # after everybody's finals
            urgent, deadline_s = False, deadline_s + YIELD_S
        this = _Pass(self._end, self._epoch, asyncio.get_running_loop().create_future())
        silent_end = self._end > self._voiced_end
        voiced_end = self._voiced_end
        self._running = this
        try:
            while this.covers - self._start > CUT_S * IN_RATE and this.epoch == self._epoch:
                await self._cut(deadline_s)
            if this.epoch != self._epoch or self._running is not this:
                return
            epoch, start = self._epoch, self._start
            pcm = to_float(self._buffer[: this.covers - start])
            heard = await self._recognizer.transcribe(
                pcm,
                prefix=self._agreement.confirmed,
                final=urgent,
                deadline_s=deadline_s,
                key=self,
            )
            if epoch != self._epoch or start != self._start or this.covers < self._seen_end:
                return
            self._agreement.update(heard.words)
            self._account(heard)
            self._seen_end = this.covers
            self._at_pause = silent_end and voiced_end == self._voiced_end
        finally:
            this.done.set_result(None)
            if self._running is this:
                self._running = None

    async def _cut(self, deadline_s: float) -> None:
        """Settle the words before the quietest place of a buffer that has grown too long."""
        epoch, start = self._epoch, self._start
        at = self._quiet_place()
        heard = await self._recognizer.transcribe(
            to_float(self._buffer[:at]), final=True, deadline_s=deadline_s
        )
        if epoch != self._epoch or start != self._start:
            return
        self._account(heard)
        known = self._agreement.confirmed
        k, j = split_at(known, heard.words)
        self._settled += known[:k] + heard.words[j:]
        if k < len(known):
            self._agreement.keep_from(k)
        else:
            self._agreement = Agreement()
        self._drop_to(start + at)

    def _quiet_place(self) -> int:
        """Sample offset of the middle of the quietest 300 ms in the part that may be cut."""
        first = int(CUT_FROM_S * IN_RATE)
        last = int(min(self.held_samples, CUT_S * 1.3 * IN_RATE) - CUT_MARGIN_S * IN_RATE)
        n = (last - first) // IN_FRAME
        part = self._buffer[first : first + n * IN_FRAME].astype(np.float32).reshape(n, IN_FRAME)
        power = np.square(part).mean(axis=1)
        width = 15  # frames of 20 ms
        smooth = np.convolve(power, np.ones(width, np.float32), mode="valid")
        return first + (int(smooth.argmin()) + width // 2) * IN_FRAME

    def _settle_at_pause(self) -> None:
        self._settled += self._agreement.words
        self._agreement = Agreement()
        self._drop_to(self._seen_end - int(KEEP_S * IN_RATE))

    def _drop_to(self, sample: int) -> None:
        n = sample - self._start
        held = self.held_samples
        self._buffer[: held - n] = self._buffer[n:held]
        self._start = sample

    def _store(self, pcm: Pcm16) -> None:
        limit = int(MAX_BUFFER_S * IN_RATE)
        pcm = pcm[-limit:]
        excess = self.held_samples + len(pcm) - limit
        if excess > 0:
            self.dropped_samples += excess
            self._drop_to(self._start + excess)
        held = self.held_samples
        if held + len(pcm) > len(self._buffer):
            grown = np.zeros(min(limit, 2 * (held + len(pcm))), np.int16)
            grown[:held] = self._buffer[:held]
            self._buffer = grown
        self._buffer[held : held + len(pcm)] = pcm
        self._end += len(pcm)

    def _sounds_voiced(self, pcm: Pcm16) -> bool:
        if len(pcm) == 0:
            return False
        sound = pcm.astype(np.float32)
        rms = math.sqrt(float(np.dot(sound, sound)) / len(sound))
        self._peak = max(rms, self._peak)
        return rms >= FLOOR_RMS and rms >= PEAK_RATIO * self._peak

    def _account(self, heard: Transcript) -> None:
        if self._noise is not None:
            self._noise.heard(bool(heard.words), heard.compute_s)
        self.passes += 1
        self.compute_s += heard.compute_s
        self._no_speech = heard.no_speech_prob
        self._logprob = heard.logprob
