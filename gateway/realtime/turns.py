"""The caller's turns as items: speech marks, transcripts, commits and re-openings."""

from __future__ import annotations

from voice_agent.types import TurnId

from .items import Conversation, Item, new_id
from .response import Emit

KEPT = 16


class Turns:
    """Owns the ids of the caller's items, from the onset of speech to a possible re-opening."""

    def __init__(self, conversation: Conversation, emit: Emit) -> None:
        self._conversation = conversation
        self._emit = emit
        self._open: dict[int, str] = {}  # turn index -> its item's id, onset to commit
        self._committed: dict[int, str] = {}  # turn index -> id, kept for a re-opening
        self._deltas: dict[int, str] = {}  # turn index -> transcript sent as deltas
        self._untold: set[int] = set()  # turns whose speech_started was not sent

    def _item_id(self, turn: TurnId) -> str:
        return self._open.setdefault(turn.index, new_id("item"))

    def started(self, turn: TurnId, onset_ms: int, *, tell: bool) -> None:
        item_id = self._item_id(turn)
        if tell:
            self._emit(
                "input_audio_buffer.speech_started", audio_start_ms=onset_ms, item_id=item_id
            )
        else:
            self._untold.add(turn.index)

    def stopped(self, turn: TurnId, end_ms: int) -> None:
        if turn.index not in self._untold:
            self._emit(
                "input_audio_buffer.speech_stopped",
                audio_end_ms=end_ms,
                item_id=self._item_id(turn),
            )

    def partial(self, turn: TurnId, confirmed: str) -> None:
        """Only confirmed words are sent, so that the deltas joined are the transcript."""
        sent = self._deltas.get(turn.index, "")
        delta = confirmed[len(sent) :] if confirmed.startswith(sent) else ""
        if delta:
            self._deltas[turn.index] = confirmed
            self._emit(
                "conversation.item.input_audio_transcription.delta",
                item_id=self._item_id(turn),
                content_index=0,
                delta=delta,
            )

    def committed(self, turn: TurnId, text: str, *, tell: bool, heard_ms: int) -> None:
        """tell: the client wants transcripts."""
        item_id = self._item_id(turn)
        item = Item("user", [{"type": "input_audio", "transcript": None}], id=item_id)
        previous = self._conversation.add(item)
        self._emit("input_audio_buffer.committed", item_id=item_id, previous_item_id=previous)
        for name in ("added", "done"):
            self._emit(f"conversation.item.{name}", item=item.wire(), previous_item_id=previous)
        item.content[0]["transcript"] = text
        if tell:
            self.partial(turn, text)
            self._emit(
                "conversation.item.input_audio_transcription.completed",
                item_id=item_id,
                content_index=0,
                transcript=text,
                usage={"type": "duration", "seconds": heard_ms / 1000},
            )
        self._committed[turn.index] = self._open.pop(turn.index)
        if len(self._committed) > KEPT:
            del self._committed[next(iter(self._committed))]
        self._deltas.pop(turn.index, None)
        self._untold.discard(turn.index)

    def reopened(self, turn: TurnId) -> None:
        """The message grows: its item goes, and a new one comes with the whole text."""
        item_id = self._committed.pop(turn.index, None)
        if item_id is not None and item_id in self._conversation:
            self._conversation.remove(item_id)
            self._emit("conversation.item.deleted", item_id=item_id)
