"""The caller's turns as items: speech marks, transcripts, commits and re-openings."""

from __future__ import annotations

from dataclasses import dataclass, field

from voice_agent.types import TurnId

from .items import Conversation, Item, new_id
from .response import Emit

KEPT = 16


@dataclass(slots=True)
class _Turn:
    """One turn that is not committed yet. told: `speech_started` was sent; sent: transcript in
    deltas; silent: nobody spoke, the client's patience ran out."""

    item_id: str = field(default_factory=lambda: new_id("item"))
    told: bool = False
    sent: str = ""
    onset_ms: int | None = None
    end_ms: int = 0
    silent: bool = False


class Turns:
    """Owns the ids of the caller's items, from the onset of speech to a possible re-opening."""

    def __init__(self, conversation: Conversation, emit: Emit) -> None:
        self._conversation = conversation
        self._emit = emit
        self._open: dict[int, _Turn] = {}  # by the turn's index, onset to commit
        self._committed: dict[int, str] = {}  # turn index -> item's id, kept for a re-opening

    def _turn(self, turn: TurnId) -> _Turn:
        return self._open.setdefault(turn.index, _Turn())

    def started(self, turn: TurnId, onset_ms: int, *, tell: bool) -> None:
        known = self._turn(turn)
        known.onset_ms = onset_ms if known.onset_ms is None else known.onset_ms
        if tell:
            known.told = True
            self._emit(
                "input_audio_buffer.speech_started",
                audio_start_ms=onset_ms,
                item_id=known.item_id,
            )

    def silent(self, turn: TurnId, start_ms: int, end_ms: int) -> None:
        known = self._turn(turn)
        known.silent, known.onset_ms = True, start_ms
        self._emit(
            "input_audio_buffer.timeout_triggered",
            audio_start_ms=start_ms,
            audio_end_ms=end_ms,
            item_id=known.item_id,
        )

    def stopped(self, turn: TurnId, end_ms: int) -> None:
        known = self._turn(turn)
        known.end_ms = end_ms
        if known.told:
            self._emit(
                "input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=known.item_id
            )

    def partial(self, turn: TurnId, confirmed: str) -> None:
        """Only confirmed words are sent, so that the deltas joined are the transcript."""
        known = self._turn(turn)
        delta = confirmed[len(known.sent) :] if confirmed.startswith(known.sent) else ""
        if delta:
            known.sent = confirmed
            self._emit(
                "conversation.item.input_audio_transcription.delta",
                item_id=known.item_id,
                content_index=0,
                delta=delta,
            )

    def committed(self, turn: TurnId, text: str, *, tell: bool) -> None:
        """tell: the client wants transcripts."""
        known = self._turn(turn)
        item = Item(
            "user", [{"type": "input_audio", "transcript": None}], id=known.item_id, key=turn.first
        )
        previous = self._conversation.add(item)
        self._emit("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)
        for name in ("added", "done"):
            self._emit(f"conversation.item.{name}", item=item.wire(), previous_item_id=previous)
        item.content[0]["transcript"] = "" if known.silent else text
        if tell and not known.silent:
            self.partial(turn, text)
            onset_ms = known.end_ms if known.onset_ms is None else known.onset_ms
            self._emit(
                "conversation.item.input_audio_transcription.completed",
                item_id=item.id,
                content_index=0,
                transcript=text,
                usage={"type": "duration", "seconds": max(0, known.end_ms - onset_ms) / 1000},
            )
        del self._open[turn.index]
        self._committed[turn.index] = item.id
        if len(self._committed) > KEPT:
            del self._committed[next(iter(self._committed))]

    def reopened(self, turn: TurnId) -> None:
        """The message grows: its item goes, and a new one comes with the whole text."""
        item_id = self._committed.pop(turn.index, None)
        if item_id is not None and item_id in self._conversation:
            self._conversation.remove(item_id)
            self._emit("conversation.item.deleted", item_id=item_id)
