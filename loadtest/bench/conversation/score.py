"""What each run is worth: the metrics' definitions, pure functions of what an outsider saw.

They follow Full-Duplex-Bench (Lin et al. 2025): a *takeover* in a pause is our sound in it or over
the words after it; a turn is *taken* when our answer's first sound comes after its last voiced
sample and within 5 s; an interruption *succeeds* when we fall silent for good, no later than 1 s
after its last voiced sample, and answer it. Beside these:

* a *false stop*: a sound that takes no turn ended our reply for good;
* a *hold*: our voice falls silent within a reply and either goes on (*resumed*, rightly so if no
  sample is left out and at most 1.5 s is said again) or was decided to be cut;
* *stop latency*: first voiced sample of an interruption to the end of our last frame;
* *yield*: first voiced sample to our first frame that is silent or at most half as loud;
* *heard-word error*: words remembered as said, less those whose sound had left the player;
* *stuck*: we owe a sound (a turn ended, or our reply was cut) and none comes within 5 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from voice_agent.types import FRAME_MS, OUT_FRAME, OUT_RATE

from .scene import INTERRUPTIONS, NO_TURNS, REPLIES, TURNS, Kind
from .watch import ANSWER_MS, QUIET, Run

LATE_STOP_MS = 1000
COUNTED_MS = 250  # shorter pauses end nobody's turn and would only flatter the rate
SAID_AGAIN = OUT_RATE * 3 // 2

WordsAt = Callable[[str, int], int]
"""(reply's text, samples of it played) -> words whose sound was played."""


@dataclass(frozen=True, slots=True)
class Hold:
    """ms: how long our voice was silent. resumed: it went on; rightly: without loss."""

    ms: float
    resumed: bool
    rightly: bool


@dataclass(frozen=True, slots=True)
class Turned:
    """A scene in which the caller has a turn. pauses: each one's length and whether we took it.
    wait_ms: last voiced sample to the decision; latency_ms: to our first sound."""

    name: str
    kind: Kind
    detail: str
    human: bool
    pauses: tuple[tuple[float, bool], ...]
    taken: bool
    latency_ms: float | None
    wait_ms: float | None
    stuck: bool


@dataclass(frozen=True, slots=True)
class Talked:
    """A scene in which something sounds while we speak. valid: our voice was there to be stopped.
    speech_s: how long our reply lasted, holds included. error_words: None if nothing was cut."""

    name: str
    kind: Kind
    detail: str
    human: bool
    valid: bool
    stopped: bool
    success: bool
    stop_ms: float | None
    yield_ms: float | None
    holds: tuple[Hold, ...]
    speech_s: float
    error_words: int | None
    stuck: bool


Scored = Turned | Talked


def score(run: Run, words_at: WordsAt) -> Scored:
    """One scene's worth."""
    return _turned(run) if run.scene.kind in TURNS else _talked(run, words_at)


def starts(run: Run) -> dict[int, float]:
    """Each reply's first sound, in ms of the call."""
    out: dict[int, float] = {}
    for i, (reply, audible) in enumerate(zip(run.reply, run.audible, strict=True)):
        if audible and reply not in out:
            out[reply] = run.ms(i)
    return out


def _answer_after(run: Run, end_ms: float) -> float | None:
    """First sound of the first reply that began after `end_ms` and in time."""
    later = [ms for ms in starts(run).values() if end_ms < ms <= end_ms + ANSWER_MS]
    return min(later) if later else None


def _turned(run: Run) -> Turned:
    scene = run.scene
    speech = [v for placed in run.placed for v in placed.voiced_ms]
    end = speech[-1][1]
    sounds = [run.ms(i) for i, audible in enumerate(run.audible) if audible]
    pauses = []
    for (_, off), (on, over) in pairwise(speech):
        if on - off >= COUNTED_MS:
            pauses.append((on - off, any(off < ms <= over for ms in sounds)))
    answer = _answer_after(run, end)
    wait = None
    if answer is not None:
        decided = [c.ms for c in run.commits if c.ms <= answer]
        wait = decided[-1] - end if decided else None
    return Turned(
        scene.name, scene.kind, scene.detail, scene.human,
        pauses=() if scene.kind is Kind.CORRECTION else tuple(pauses),
        taken=answer is not None,
        latency_ms=None if answer is None else answer - end,
        wait_ms=wait,
        stuck=answer is None and not _speaks_at(run, end + ANSWER_MS),
    )  # fmt: skip


def _speaks_at(run: Run, ms: float) -> bool:
    """We were heard in the last second before `ms`."""
    last = [run.ms(i) for i, a in enumerate(run.audible) if a and run.ms(i) <= ms]
    return bool(last) and last[-1] > ms - 1000


def _talked(run: Run, words_at: WordsAt) -> Talked:
    scene = run.scene
    first = [i for i, r in enumerate(run.reply) if r == 0 and run.audible[i]]
    over = next((o for o in run.overs if o.reply == 0), None)
    if scene.kind is Kind.ECHO:
        on = end = run.ms(first[0]) if first else 0.0
    else:
        on, end = run.placed[-1].onset_ms, run.placed[-1].end_ms
    last = first[-1] if first else -1
    completed = over is not None and over.completed
    was_over = over is not None and over.completed and over.ms <= on
    valid = bool(first) and run.ms(last) + FRAME_MS > on and not was_over
    now = run.now_ms
    gone = bool(first) and run.ms(last) < now - 400
    stopped = bool(first) and not completed and (gone or over is not None)
    silent_from = run.ms(last) + FRAME_MS
    answer = _answer_after(run, end)
    success = valid and stopped and silent_from <= end + LATE_STOP_MS and answer is not None
    owed = stopped and answer is None
    heard = [i for i in range(len(run.gain)) if run.ms(i) >= on]
    asks = valid and scene.kind in INTERRUPTIONS
    quiet = next((run.ms(i) for i in heard if run.gain[i] <= QUIET), None)
    return Talked(
        scene.name, scene.kind, scene.detail, scene.human,
        valid=valid,
        stopped=stopped,
        success=success,
        stop_ms=silent_from - on if stopped and valid else None,
        yield_ms=quiet - on if asks and quiet is not None else None,
        holds=_holds(run, first, over.ms if over is not None else now),
        speech_s=(len(range(first[0], last)) + 1) * FRAME_MS / 1000 if first else 0.0,
        error_words=_error(run, words_at),
        stuck=owed and now >= end + ANSWER_MS,
    )  # fmt: skip


def _holds(run: Run, first: list[int], over_ms: float) -> tuple[Hold, ...]:
    """Silences of reply 0 between its first sound and its end."""
    out = []
    for a, b in pairwise(first):
        if b - a > 1 and any(run.reply[i] == 0 for i in range(a + 1, b)):
            left = run.offset[a] + OUT_FRAME
            rightly = left - SAID_AGAIN <= run.offset[b] <= left
            out.append(Hold((b - a - 1) * FRAME_MS, True, rightly))
    if first and over_ms > run.ms(first[-1]) + FRAME_MS:
        out.append(Hold(over_ms - run.ms(first[-1]) - FRAME_MS, False, False))
    return tuple(out)


def _error(run: Run, words_at: WordsAt) -> int | None:
    """Of reply 0: words remembered less words played, where it was cut."""
    over = next((o for o in run.overs if o.reply == 0), None)
    if over is None or over.completed or over.heard is None:
        return None
    played = 0
    for i, (reply, audible) in enumerate(zip(run.reply, run.audible, strict=True)):
        if reply == 0 and audible and run.ms(i) + FRAME_MS + run.scene.player_ms <= over.ms:
            played = max(played, run.offset[i] + OUT_FRAME)
    text = REPLIES[run.scene.reply]
    return len(over.heard.split()) - words_at(text, played)


def is_false_stop(event: Scored) -> bool:
    """A sound that takes no turn ended our reply."""
    return isinstance(event, Talked) and event.kind in NO_TURNS and event.stopped
