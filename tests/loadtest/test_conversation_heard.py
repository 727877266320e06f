"""Words remembered against words in the client's own recording, with a voice of noise and silence.

Each word is a burst of noise of its own, so that the recording's end is found in the sound and the
words are counted between the silences: nothing of the truth comes from the call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from loadtest.bench.conversation.heard import BUFFERS_MS, Words, measure, report, totals
from loadtest.bench.conversation.heard_call import Client
from loadtest.bench.conversation.player import PER_MS, Player, end_of
from voice_agent.clauses import ClauseSplitter
from voice_agent.scope import CancelScope
from voice_agent.tts.base import AudioPiece, Clause, WordTime
from voice_agent.types import Pcm16

pytestmark = pytest.mark.unit

TEXT = "so here is one thing that we say to them at once " * 2
GAP_MS = 60


def burst(word: str, at: int) -> Pcm16:
    rng = np.random.default_rng(at)
    n = (120 + 40 * len(word)) * PER_MS
    return rng.integers(-6000, 6000, n).astype(np.int16)


def pieces(clause: Clause) -> list[AudioPiece]:
    out, at = [], 0
    for i, word in enumerate(clause.words):
        sound = burst(word.text, word.source[0])
        pcm = np.concatenate([sound, np.zeros(GAP_MS * PER_MS, np.int16)])
        last = i == len(clause.words) - 1
        out.append(AudioPiece(pcm, (WordTime(i, at, at + len(sound)),), last))
        at += len(pcm)
    return out


class NoiseSpeaker:
    async def speak(
        self,
        clause: Clause,
        *,
        speed: float,
        deadline_s: Callable[[], float],
        scope: CancelScope,
    ) -> AsyncIterator[AudioPiece]:
        for piece in pieces(clause):
            if scope.cancelled:
                return
            yield piece


def whole(text: str) -> Pcm16:
    splitter = ClauseSplitter()
    clauses = [*splitter.push(text), *splitter.finish()]
    return np.concatenate([p.pcm for c in clauses if c.words for p in pieces(c)])


def between_silences(text: str, sound: Pcm16) -> list[int]:
    """The middle of every stretch without 20 ms of silence."""
    loud = np.flatnonzero(sound)
    breaks = np.flatnonzero(np.diff(loud) > 20 * PER_MS)
    starts, ends = [loud[0], *loud[breaks + 1]], [*loud[breaks], loud[-1]]
    middles = [int(a + b) // 2 for a, b in zip(starts, ends, strict=True)]
    assert len(middles) == len(text.split())
    return middles


NOISE = Words(NoiseSpeaker, whole, between_silences)


def test_a_client_that_acknowledges_is_remembered_to_the_word() -> None:
    figures = report(measure(NOISE, n=4, seed=3, texts=[TEXT.strip()]))
    for client in (Client.TRUNCATES, Client.REPORTS):
        for buffer in BUFFERS_MS:
            row = figures[client][str(buffer)]
            assert row["min"] >= -1, (client, buffer, row)
            assert row["max"] <= 0, (client, buffer, row)
        assert figures[client]["all"]["exact"] >= 0.6, figures[client]
    silent = figures[Client.SILENT]
    assert silent["0"]["max"] <= 0
    assert silent["400"]["max"] >= 1, "the truth does not come from the server"
    assert silent["400"]["mean"] > silent["0"]["mean"]


def test_totals_are_signed() -> None:
    outcomes = measure(NOISE, n=1, seed=1, texts=[TEXT.strip()])
    assert len(outcomes) == len(Client) * len(BUFFERS_MS)
    t = totals(outcomes)
    assert (t["n"], t["abs_p95"]) == (12, None)
    assert t["min"] <= t["mean"] <= t["max"]


def test_a_player_waits_for_its_buffer_and_stops_at_once() -> None:
    frame = np.arange(480, dtype=np.int16)
    player = Player(60)
    for k in range(5):
        player.receive(100.0 + 20 * k, frame)
    assert len(player.stop(159.0)) == 0
    player = Player(60)
    for k in range(5):
        player.receive(100.0 + 20 * k, frame)
    assert len(player.stop(175.5)) == 15.5 * PER_MS
    player.receive(300.0, frame)
    assert len(player.stop(1000.0)) == 480, "what was dropped is not played later"


@pytest.mark.parametrize("played_ms", [0, 7, 400, 1234, 3000])
def test_the_end_of_a_recording_is_found_in_the_sound(played_ms: int) -> None:
    sound = whole(TEXT)
    at = played_ms * PER_MS
    quiet = np.zeros(999, np.int16)
    assert end_of(np.concatenate([quiet, sound[:at]]), sound) == (at if sound[:at].any() else 0)
