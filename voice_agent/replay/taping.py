"""The tape of a call while it is being recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, TypeVar

import numpy as np

from voice_agent.clock import Clock
from voice_agent.events import Decided, Event, ReplyDone
from voice_agent.tts.base import AudioPiece
from voice_agent.types import Frame, Pcm16

from .tape import Control, Head, Piece, Recorded, Taken, Tape, letter

Take = TypeVar("Take")


class Taping:
    """Owns the tape of one call. Past `max_s` nothing more is kept: a tape is a call's beginning.

    Everything on the event loop.
    """

    def __init__(self, head: Head, clock: Clock, max_s: float) -> None:
        self.tape = Tape(head)
        self._clock = clock
        self._zero_s = clock.now()
        self._max_s = max_s
        self._caller: list[Pcm16] = []
        self._sound: list[Pcm16] = []
        self._samples = 0
        self.inside = False  # a control of the client is being carried out

    def now(self) -> float:
        return round(self._clock.now() - self._zero_s, 6)

    @property
    def full(self) -> bool:
        return self._clock.now() - self._zero_s >= self._max_s

    @property
    def n_frames(self) -> int:
        return len(self._caller)

    def ended(self, reason: str) -> None:
        """The call is over, or its transport gone."""
        self.tape.cut = self.full
        self.tape.ended_s, self.tape.reason = min(self.now(), self._max_s), reason

    def heard(self, frame: Frame) -> None:
        if not self.full:
            self._caller.append(frame.pcm)
            self.tape.frame_times.append(self.now())
            self.tape.frame_flags += letter(frame.flag)

    def ticked(self, shed: int) -> None:
        if self.full:
            return
        self.tape.tick_times.append(self.now())
        if shed != (self.tape.shed[-1][1] if self.tape.shed else 0):
            self.tape.shed.append((self.now(), shed))

    def control(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        if not self.full:
            told = [_plain(arg) for arg in args]
            named = {k: _plain(v) for k, v in kwargs.items() if v is not None}
            self.tape.controls.append(Control(self.now(), name, told, named))

    def keep(self, where: list[Take], take: Take) -> None:
        if not self.full:
            where.append(take)

    def event(self, event: Event) -> None:
        """Decisions, and how replies ended, are what a replay is compared by."""
        if self.full:
            return
        taken = taken_of(event, self.now())
        if taken is not None:
            self.tape.decisions.append(taken)

    def piece(self, piece: AudioPiece) -> Piece:
        start, n = self._samples, 0 if self.full else len(piece.pcm)
        self._samples += n
        self._sound.append(piece.pcm[:n])
        words = tuple((w.index, w.start, w.end) for w in piece.words)
        return Piece(self.now(), start, n, words, piece.last)

    def recorded(self) -> Recorded:
        """The tape so far."""
        empty = [np.zeros(0, np.int16)]
        caller, sound = np.concatenate(empty + self._caller), np.concatenate(empty + self._sound)
        return Recorded(self.tape, caller, sound)


def taken_of(event: Event, at_s: float) -> Taken | None:
    """What a replay must repeat of an event, if anything."""
    if isinstance(event, Decided):
        decision = event.decision
        return Taken(at_s, decision.key, dict(decision.why))
    if isinstance(event, ReplyDone):
        turn = event.reply.turn
        index, revision = (turn.index, turn.revision) if turn is not None else (-1, 0)
        why: dict[str, bool | int | float | str] = {"heard_ms": event.audio_ms}
        return Taken(at_s, ("reply_done", index, revision, event.status.value), why)
    return None


def fault_of(error: Exception) -> str:
    """`CODE class: message`, so that a replay can raise its like."""
    message = error.args[0] if error.args else ""
    return f"{getattr(error, 'code', '')} {type(error).__name__}: {message}".strip()


def _plain(value: Any) -> Any:
    """A control's argument as JSON has it."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return value
