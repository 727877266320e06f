"""What most agents do, over the same sounds, models and stage times: only turn-taking differs.

`PLAIN`: an energy-free detector and 700 ms of silence. `SMART_TURN`: as Pipecat 1.14 does it by
default (VAD confidence 0.7, start 0.2 s, stop 0.2 s, minimum volume 0.6; Smart Turn at every stop,
else 3 s of silence; the turn ends when its words are there too). Either cancels our voice for good
as soon as the caller's starts, remembers no more of it than its finished sentences (the plain one
remembers all of it), transcribes at a stop, and begins to think at the end of the turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from voice_agent.audio import to_float
from voice_agent.stt.streaming import PRE_ROLL_MS
from voice_agent.types import FRAME_MS, IN_RATE, OUT_FRAME, OUT_RATE, SILENT_OUT, Frame, Pcm16
from voice_agent.vad import CONTEXT, WINDOW_MS, Windower

from .ours import ASK_MS, Kit, texts
from .room import Room
from .scene import Scene
from .watch import Commit, Over, Run, Watcher

SMART_TURN_S = 8
SMART_PRE_MS = 700
COMPLETE = 0.5
MAX_PASS_S = 28.0


@dataclass(frozen=True, slots=True)
class Manner:
    """confidence: least probability of voice. volume: least loudness, 0 to 1 over 100 dB.
    start_ms, stop_ms: of voice and of silence before the caller is taken to have begun or stopped.
    fallback_ms: further silence that ends a turn which Smart Turn calls unfinished; None: every
    stop ends the turn. forgets: only whole sentences that were played are remembered as said."""

    name: str
    confidence: float
    volume: float
    start_ms: int
    stop_ms: int
    fallback_ms: int | None
    forgets: bool


PLAIN = Manner("vad_700ms", 0.5, 0.0, 200, 700, None, False)
SMART_TURN = Manner("vad_smart_turn", 0.7, 0.6, 200, 200, 3000, True)


class _Voice:
    """Started and stopped, from windows: counts of them, as the peer counts."""

    def __init__(self, manner: Manner, kit: Kit) -> None:
        self._manner = manner
        self._kit = kit
        self._windower = Windower()
        self._context = np.zeros(CONTEXT, np.float32)
        self._state = np.zeros((2, 1, 128), np.float32)
        self._volume = 0.0
        self._run = 0
        self.speaking = False

    def hear(self, pcm: Pcm16) -> list[bool]:
        """True: started, False: stopped; in order."""
        out: list[bool] = []
        for _, window, _ in self._windower.push(Frame(pcm)):
            row = np.concatenate([self._context, window])
            self._context = window[-CONTEXT:]
            probs, self._state = self._kit.vad.score(row[None], self._state)
            level = 10 * np.log10(float(np.square(window * 32768).mean()) + 1e-9)
            volume = float(np.clip((level + 20) / 100, 0.0, 1.0))
            self._volume += 0.2 * (volume - self._volume)
            loud = self._volume >= self._manner.volume
            voiced = bool(probs[0] >= self._manner.confidence) and loud
            self._run = self._run + 1 if voiced != self.speaking else 0
            needed = self._manner.stop_ms if self.speaking else self._manner.start_ms
            if self._run >= round(needed / WINDOW_MS):
                self.speaking, self._run = not self.speaking, 0
                out.append(self.speaking)
        return out


class _Agent:
    """One call of such an agent. Times are ms of the call."""

    def __init__(self, scene: Scene, kit: Kit, manner: Manner, run: Run) -> None:
        self._kit = kit
        self._manner = manner
        self._run = run
        self._voice = _Voice(manner, kit)
        self._texts = texts(scene)
        self._player_ms = scene.player_ms
        self._heard: list[Pcm16] = []
        self._n = -1
        self._sound: Pcm16 | None = None
        self._text = ""
        self._position = 0
        self._sounds_at: float | None = None
        self._words: list[str] = []
        self._segment_ms = 0.0  # where the words not yet transcribed begin
        self._turn_ms = 0.0
        self._words_at: float | None = None
        self._verdict_at: float | None = None
        self._pending = ""
        self._recogniser_free_ms = 0.0

    def answer(self, now: float) -> None:
        """Think and speak: the reply's first sound comes when its stages are done."""
        self._n += 1
        self._text = next_text = self._texts()
        first = self._kit.studio.clauses(next_text)[0]
        self._sounds_at = now + self._kit.times.first_sound_ms(len(first.words))

    def hear(self, pcm: Pcm16, now: float) -> None:
        self._heard.append(pcm)
        for started in self._voice.hear(pcm):
            if started:
                self._started(now)
            else:
                self._stopped(now)
        if self._verdict_at is not None and now >= self._verdict_at:
            self._try_to_end(now)

    def _started(self, now: float) -> None:
        self._cancel(now)
        if self._verdict_at is None and not self._words:
            self._turn_ms = now - self._manner.start_ms
        self._segment_ms = now - self._manner.start_ms - PRE_ROLL_MS
        self._verdict_at = None

    def _cancel(self, now: float) -> None:
        if self._sound is not None:
            heard = self._text
            if self._manner.forgets:
                heard = self._finished_sentences(
                    self._position - self._player_ms * OUT_RATE // 1000
                )
            self._run.overs.append(Over(now, self._n, False, heard))
        elif self._sounds_at is not None:
            self._run.overs.append(Over(now, self._n, False, None))
        self._sound, self._sounds_at = None, None

    def _finished_sentences(self, samples: int) -> str:
        """Of the reply, the sentences whose sound was played to its end."""
        kept, at = "", 0
        sentence = ""
        for clause in self._kit.studio.clauses(self._text):
            at += sum(len(p.pcm) for p in self._kit.studio.pieces(clause)) if clause.words else 0
            sentence += clause.text
            if clause.text.rstrip().endswith((".", "!", "?")) and at <= samples:
                kept, sentence = kept + sentence, ""
        return kept

    def _stopped(self, now: float) -> None:
        times = self._kit.times
        heard = self._kit.recall.pass_over(to_float(self._since(self._segment_ms, MAX_PASS_S)))
        began = max(now, self._recogniser_free_ms)
        self._words_at = self._recogniser_free_ms = began + heard.compute_s * 1000
        self._words += heard.words
        if self._manner.fallback_ms is None:
            self._verdict_at = self._words_at
            return
        window = to_float(self._since(self._turn_ms - SMART_PRE_MS, SMART_TURN_S))
        complete = self._kit.smart_turn.predict(window) > COMPLETE
        wait = times.smart_turn if complete else self._manner.fallback_ms
        self._verdict_at = max(self._words_at, now + wait)

    def _since(self, ms: float, at_most_s: float) -> Pcm16:
        whole = np.concatenate(self._heard)
        start = max(0, int(ms * IN_RATE / 1000), len(whole) - int(at_most_s * IN_RATE))
        return whole[start:]

    def _try_to_end(self, now: float) -> None:
        self._verdict_at = None
        if self._words:  # else a turn without words: nobody answers
            self._run.commits.append(Commit(now, " ".join(self._words)))
            self._cancel(now)
            self.answer(now)
        self._words = []

    def tick(self, now: float) -> tuple[Pcm16, int, bool, int]:
        """The next 20 ms: int16 [480], which reply, whether it sounds, its position."""
        if self._sounds_at is not None and now >= self._sounds_at:
            self._sounds_at, self._position = None, 0
            self._sound = self._kit.sound_of(self._text)
        if self._sound is None:
            return SILENT_OUT, -1, False, 0
        at = self._position
        part = self._sound[at : at + OUT_FRAME]
        self._position += len(part)
        if self._position >= len(self._sound):
            self._sound = None
            self._run.overs.append(Over(now, self._n, True, self._text))
        return np.pad(part, (0, OUT_FRAME - len(part))), self._n, True, at


def run_baseline(scene: Scene, kit: Kit, seed: int, manner: Manner) -> Run:
    """The same call through such an agent."""
    room = Room(scene, seed)
    watcher = Watcher(scene, room)
    agent = _Agent(scene, kit, manner, watcher.run)
    asked = not scene.agent_first
    while not watcher.finished:
        now = (len(watcher.run.reply) + 1) * float(FRAME_MS)
        if not asked and now >= ASK_MS:
            asked = True
            agent.answer(now)
        agent.hear(room.hear(), now)
        pcm, reply, audible, offset = agent.tick(now)
        room.play(pcm)
        watcher.tick(reply, audible, offset, float(audible))
    return watcher.run
