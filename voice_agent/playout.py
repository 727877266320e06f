"""What the caller hears, sample by sample: one reply's words, position, hold and flush.

A pure object: no clock, no thread, no I/O. Whoever owns the output clock calls `tick()` once per
20 ms; everything else happens between ticks. The samples themselves are a `Player`'s, which may be
in a media worker: then each tick is what that player reported. All positions are samples at 24 kHz
counted from the first sample of the reply; silence we add ourselves (underrun, hold) never moves
the position.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from dataclasses import dataclass

from .errors import InternalError
from .player import Played, Player, Sound, Sounding
from .tts.base import AudioPiece, Clause
from .types import FRAME_MS, OUT_FRAME, OUT_RATE, SILENT_OUT, Pcm16, ReplyId

REPLAY_AFTER_MS = 150
HEARD_FRACTION = 0.6
HISTORY_TICKS = 256
HOLE_TICKS = 3
"""Without sound in the middle of a reply: over 40 ms, which is heard."""
KEPT = HISTORY_TICKS * OUT_FRAME
"""Samples that stay here after they have left (5 s): a line that is lost is noticed later."""
KEPT_REPLIES = 4
_ALL = 1 << 62


@dataclass(frozen=True, slots=True)
class Heard:
    """chars: end (exclusive) in the reply's text of the last word whose audio was mostly played, 0
    if none. samples: audio of the reply that was played, 24 kHz."""

    chars: int
    samples: int


@dataclass(frozen=True, slots=True)
class Tick:
    """20 ms to send. pcm: int16 [480], 24 kHz.

    audible: the frame moves the reply forward; offset: position of its first sample. finished: this
    frame held the reply's last sample. underrun: the frame lacks sound although more is to come.
    """

    pcm: Pcm16
    reply: ReplyId | None = None
    audible: bool = False
    offset: int = 0
    finished: ReplyId | None = None
    underrun: bool = False


NOTHING = Tick(SILENT_OUT)


class _Marks:
    """Which characters are heard once a position is reached; both columns never decrease."""

    __slots__ = ("chars", "positions", "words")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.chars: list[int] = []
        self.words: list[int] = []

    def add(self, position: int, chars: int, *, word: bool) -> None:
        words = (self.words[-1] if self.words else 0) + word
        if self.positions:
            position = max(position, self.positions[-1])
            chars = max(chars, self.chars[-1])
        self.positions.append(position)
        self.chars.append(chars)
        self.words.append(words)

    def at(self, position: int) -> tuple[int, int]:
        """(characters, words) heard when `position` samples have been played."""
        i = bisect_right(self.positions, position) - 1
        return (self.chars[i], self.words[i]) if i >= 0 else (0, 0)


class _Line:
    """One reply's sound: what came, what was played, what is kept for a replay of the cut word."""

    __slots__ = (
        "clause", "clause_start", "dry", "ended", "finished", "furthest", "holes", "last_end",
        "marks", "position", "reply", "sound", "started", "words",
    )  # fmt: skip

    def __init__(self, reply: ReplyId) -> None:
        self.reply = reply
        self.marks = _Marks()
        self.sound = Sound()
        self.position = 0
        self.furthest = 0
        self.words: deque[tuple[int, int]] = deque()  # [start, end) of what is kept and what comes
        self.clause: int | None = None
        self.clause_start = 0
        self.last_end = 0
        self.started = False
        self.ended = False
        self.finished = False
        self.dry = self.holes = 0

    def append(self, clause: Clause, piece: AudioPiece) -> None:
        if clause.index != self.clause:
            self.clause, self.clause_start, self.last_end = clause.index, self.total, 0
        self.sound.append(piece.pcm)
        said = clause.words
        for word in piece.words:
            start, end = self.clause_start + word.start, self.clause_start + word.end
            self.words.append((start, end))
            self.last_end = max(self.last_end, end)
            more = word.index + 1 < len(said) and (
                said[word.index + 1].source == said[word.index].source
            )
            heard_at = max(1, start + round((end - start) * HEARD_FRACTION))
            # "$5" is said in two words and counts once both are heard
            self.marks.add(heard_at, 0 if more else said[word.index].source[1], word=True)
        if piece.last:
            at = self.last_end if self.last_end else self.total
            self.marks.add(max(1, at), clause.span[1], word=False)

    @property
    def total(self) -> int:
        return self.sound.end

    def played(self, position: int) -> None:
        """All before `position` has left."""
        self.started = self.started or position > self.position
        self.position = position
        self.furthest = max(self.furthest, position)
        done = position - KEPT
        while self.words and self.words[0][1] <= done:
            self.words.popleft()
        self.sound.drop_before(min(done, self.words[0][0]) if self.words else done)

    def take_back(self, position: int) -> None:
        """Nothing after `position` was heard."""
        self.furthest = min(self.furthest, position)
        self.position = max(min(self.position, position), self.sound.base)

    def rewind_to_cut_word(self) -> None:
        start = next((start for start, end in self.words if end > self.position), self.position)
        self.position = max(min(start, self.position), self.sound.base)


class Playout:
    """One call's output. One reply at a time: `begin` the next after `finished` or `flush`.

    Pieces of a reply that is not the current one are dropped and counted (`late_pieces`).
    """

    def __init__(self, player: Sounding | None = None) -> None:
        """player: None for one of its own."""
        self._player: Sounding = player or Player()
        self._line: _Line | None = None
        self._recent: deque[_Line] = deque(maxlen=KEPT_REPLIES)
        self._history: deque[int] = deque(maxlen=HISTORY_TICKS)
        self._held = False
        self._held_ticks = 0
        self._gain = 1.0
        self._lost = False
        self.late_pieces = 0
        self.underrun_ticks = 0

    def play_on(self, player: Sounding) -> None:
        """From now on by this player; a reply goes on there from the start of the cut word."""
        self._player, old, line = player, self._player, self._line
        if line is None:
            return
        old.flush(line.reply.n)
        player.begin(line.reply.n)
        if not self._lost:
            self._go_on(line)
        if line.ended:
            player.end(line.reply.n, line.total)
        if self._held:
            player.hold()
        elif self._gain != 1.0:
            player.duck(self._gain)

    # --- what is said

    def begin(self, reply: ReplyId) -> None:
        """Start a reply. Raises InternalError while another is being played."""
        if self._line is not None:
            raise InternalError(f"{reply} cannot begin while {self._line.reply} is being played")
        self._line = _Line(reply)
        self._recent.append(self._line)
        self._history.clear()
        self._held, self._held_ticks, self._gain = False, 0, 1.0
        self._player.begin(reply.n)

    def push(self, reply: ReplyId, clause: Clause, piece: AudioPiece) -> None:
        """Queue the next piece. piece.pcm must not be changed afterwards."""
        line = self._line
        if line is None or line.reply != reply or line.ended:
            self.late_pieces += 1
            return
        start = line.total
        line.append(clause, piece)
        self._player.play(reply.n, start, piece.pcm)

    def end(self, reply: ReplyId) -> None:
        """No more audio will come; the reply finishes when what is queued has left."""
        if self._line is not None and self._line.reply == reply:
            self._line.ended = True
            self._player.end(reply.n, self._line.total)

    # --- what is heard

    def tick(self) -> Tick:
        if self._lost:
            return NOTHING
        played, line = self._player.tick(), self._line
        tick = NOTHING
        if line is not None and played.reply == line.reply.n:
            tick = self._ticked(line, played)
        if self._recent:
            last = self._recent[-1]
            self._history.append(_ALL if last.finished else last.furthest)
        return tick

    def _ticked(self, line: _Line, played: Played) -> Tick:
        self._held_ticks += self._held
        line.played(played.offset + played.samples)
        self.underrun_ticks += played.underrun
        line.dry = line.dry + 1 if played.underrun else 0
        line.holes += line.dry == HOLE_TICKS
        if played.finished:
            line.finished = True
            line.sound.clear()
            self._line = None
        done = line.reply if played.finished else None
        audible = played.samples > 0
        return Tick(played.pcm, line.reply, audible, played.offset, done, played.underrun)

    # --- control

    def hold(self) -> None:
        """Silent from the next frame, but for a 5 ms fade that does not move the position."""
        if self._line is not None and not self._held:
            self._held, self._held_ticks = True, 0
            self._player.hold()

    def resume(self) -> None:
        """Go on at full gain; after more than 150 ms of hold from the start of the cut word."""
        held, self._held, self._gain = self._held, False, 1.0
        line = self._line
        if held and line is not None and self._held_ticks * FRAME_MS > REPLAY_AFTER_MS:
            self._go_on(line)
        self._player.resume()

    def _go_on(self, line: _Line) -> None:
        """From the start of the cut word."""
        line.rewind_to_cut_word()
        at = line.position
        self._player.seek(line.reply.n, at)
        for part in line.sound.parts(at):
            self._player.play(line.reply.n, at, part)
            at += len(part)

    def line_lost(self, unheard_samples: int) -> Heard:
        """Nobody hears us: no tick moves anything until `line_back`. unheard_samples: of the last
        sound that left, what did not arrive. Returns what was heard."""
        heard = self.heard(unheard_samples)
        if self._line is not None:
            self._line.take_back(heard.samples)
            self._history.extend([self._line.furthest] * HISTORY_TICKS)
        self._lost = True
        return heard

    def line_back(self) -> None:
        """Go on from the start of the cut word."""
        self._lost = False
        if self._line is not None:
            self._go_on(self._line)

    def duck(self, gain: float) -> None:
        """Play at `gain` (0 to 1) until `resume`. Raises ValueError outside that range."""
        if not 0.0 <= gain <= 1.0:
            raise ValueError(f"gain {gain} is not between 0 and 1")
        self._gain = gain
        self._player.duck(gain)

    def flush(self, reply: ReplyId, lead_samples: int = 0) -> Heard:
        """Stop for good: silent from the next frame. Returns what was heard; `lead_samples` as in
        `heard`. Flushing a reply that is not being played changes nothing."""
        line = self._line
        if line is None or line.reply != reply:
            return self.heard(lead_samples) if self.is_last(reply) else self.heard_at(reply, _ALL)
        heard = self.heard(lead_samples)
        self._player.flush(reply.n)
        line.sound.clear()
        line.words.clear()
        self._line = None
        self._held, self._held_ticks = False, 0
        return heard

    def is_last(self, reply: ReplyId | None) -> bool:
        """Whether none was begun after it."""
        return bool(self._recent) and self._recent[-1].reply == reply

    def _played(self, lead_samples: int) -> int:
        """Position reached by what has left our hands and `lead_samples` of sound before it."""
        ticks, rest = divmod(max(0, lead_samples), OUT_FRAME)
        history = self._history
        upper = history[-1 - ticks] if ticks < len(history) else 0
        if not rest:
            return upper
        lower = history[-2 - ticks] if ticks + 1 < len(history) else 0
        if upper == _ALL:
            return upper if lower == _ALL else max(lower, self._recent[-1].total - rest)
        return max(lower, upper - rest)

    def heard(self, lead_samples: int = 0) -> Heard:
        """What was heard of the current (or else the last) reply. lead_samples: sent to the client
        and not yet played there, counted back from the last tick, at most five seconds."""
        if not self._recent:
            return Heard(0, 0)
        line, played = self._recent[-1], self._played(lead_samples)
        return Heard(line.marks.at(played)[0], min(played, line.furthest))

    def heard_at(self, reply: ReplyId, samples: int) -> Heard:
        """What is heard once the client has played `samples` of a recent reply (the last four);
        never more than what has left. Unknown replies: nothing."""
        for line in self._recent:
            if line.reply == reply:
                left = _ALL if line.finished and samples >= line.total else line.furthest
                played = min(max(0, samples), left)
                return Heard(line.marks.at(played)[0], min(played, line.furthest))
        return Heard(0, 0)

    def holes(self, reply: ReplyId) -> int:
        """How often the sound of a reply ran out in its middle for over 40 ms."""
        return next((line.holes for line in self._recent if line.reply == reply), 0)

    @property
    def words_heard(self) -> int:
        """Spoken words of the current (or last) reply that were heard."""
        if not self._recent:
            return 0
        line = self._recent[-1]
        return line.marks.at(_ALL if line.finished else line.furthest)[1]

    @property
    def buffered_s(self) -> float:
        """Seconds until the queue runs dry. May be read from another thread, as may `speaking`."""
        line = self._line
        return (line.total - line.position) / OUT_RATE if line else 0.0

    @property
    def retained_samples(self) -> int:
        """Samples kept in memory."""
        return len(self._line.sound) if self._line else 0

    @property
    def reply(self) -> ReplyId | None:
        """The reply being played."""
        return self._line.reply if self._line else None

    @property
    def held(self) -> bool:
        return self._held

    @property
    def speaking(self) -> bool:
        """A reply is being played: its sound has started, or is here, and has not all left."""
        line = self._line
        return line is not None and (line.started or line.total > 0)
