"""Whole calls in this process: real models, recorded human speech, a live call's own code."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from tests.support.clips import clip, plain, room, transcripts, word_error_rate
from tests.support.real_server import STORYTELLER, command, free_port
from voice_agent.agent import Call
from voice_agent.audio import read_wav, write_wav
from voice_agent.cli.talk import Talk, converse
from voice_agent.config import load_config
from voice_agent.events import CallFault, ReplyDone, ReplyStatus, TurnCommitted, TurnReopened
from voice_agent.loading import load_stack
from voice_agent.stack import Stack
from voice_agent.types import FRAME_MS, IN_RATE, OUT_RATE, Pcm16

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

FLAGS = {
    "models.llm": "smollm2-135m",
    "models.stt": "whisper-tiny.en",
    "models.voice": "piper-joe",
    "models.fetch": False,
}
QUIET_AGENT = """
instructions = "You are a friendly phone agent. Answer in one short sentence."
[limits]
max_reply_tokens = 24
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    agents = tmp_path_factory.mktemp("agents")
    (agents / "default.toml").write_text(QUIET_AGENT, "utf-8")
    (agents / "story.toml").write_text(STORYTELLER, "utf-8")
    config = load_config(None, {**FLAGS, "agents_dir": agents}).config
    loaded = await load_stack(config)
    await loaded.start()
    yield loaded
    await loaded.close()


def committed(talk: Talk) -> list[str]:
    return [e.text for e in talk.events if isinstance(e, TurnCommitted) and e.text]


async def test_transcripts_of_the_librivox_and_beckett_clips(stack: Stack) -> None:
    names = [n for n in transcripts() if n.startswith(("ps_austen", "ms_beckett"))]
    pairs = [names[i : i + 2] for i in range(0, len(names), 2)]
    heard = []
    for pair in pairs:
        calls = (converse(stack, np.concatenate([room(0.5), clip(name)])) for name in pair)
        heard += [" ".join(_last_revisions(talk)) for talk in await asyncio.gather(*calls)]
    truth = [transcripts()[n] for n in names]
    assert word_error_rate(truth, heard) <= 0.08, list(zip(truth, heard, strict=True))


def _last_revisions(talk: Talk) -> list[str]:
    """A re-opened message is committed again with all of its words: the last one counts."""
    texts: list[str] = []
    for event in talk.events:
        if isinstance(event, TurnReopened):
            texts.pop()
        elif isinstance(event, TurnCommitted):
            texts.append(event.text)
    return texts


async def test_a_barge_in_stops_the_voice_and_cuts_the_context_at_the_heard_word(
    stack: Stack,
) -> None:
    pcm = np.concatenate([room(0.3), clip("ps_something"), room(0.2), clip("ps_goforward")])
    times: list[tuple[str, int]] = []
    frames: list[tuple[object, bool]] = []

    def cut_answer(event: object) -> bool:
        """Not the greeting, which the caller's first words may cut at its end."""
        cut = isinstance(event, ReplyDone) and event.status is ReplyStatus.INTERRUPTED
        return cut and event.reply.turn is not None

    def listen(event: object) -> None:
        if cut_answer(event):
            assert isinstance(event, ReplyDone)
            times.append((event.heard, len(frames)))

    calls: list[Call] = []
    original = stack.open_call

    def open_call(*args: object, **kwargs: object) -> object:
        call = original("story", *args[1:], **kwargs)  # type: ignore[arg-type]
        tick = call.tick

        def counted() -> object:
            out = tick()
            frames.append((out.reply, out.audible))
            return out

        call.tick = counted  # type: ignore[method-assign,assignment]
        calls.append(call)
        return call

    stack.open_call = open_call  # type: ignore[method-assign,assignment]
    try:
        talk = await converse(stack, pcm, agent="story", on_event=listen)
    finally:
        stack.open_call = original  # type: ignore[method-assign]
    assert times, "the caller's second utterance interrupted the story"
    heard, at_frame = times[0]
    story = next(e for e in talk.events if cut_answer(e))
    assert isinstance(story, ReplyDone)
    late = [k for k, (reply, _) in enumerate(frames) if reply == story.reply and k > at_frame]
    assert late == [], "no frame of the story after the one being sent at the decision"
    assert heard
    assert story.text.startswith(heard)
    assert len(heard) < len(story.text)
    messages = [m.text for m in calls[0].conversation.messages]
    assert heard in messages
    assert all(story.text != m for m in messages)
    played = sum(audible for reply, audible in frames if reply == story.reply)
    words_per_s = len(heard.split()) / (played * FRAME_MS / 1000)
    assert 1.0 < words_per_s < 7.5, "as many words as that much speech can hold"


async def test_sound_without_speech_is_not_a_turn(stack: Stack) -> None:
    rng = np.random.default_rng(3)
    n = IN_RATE * 6
    sounds: dict[str, Pcm16] = {
        "noise": (rng.normal(0, 900, n)).astype(np.int16),
        "hum": (3000 * np.sin(2 * np.pi * 50 * np.arange(n) / IN_RATE)).astype(np.int16),
        "silence": np.zeros(n, np.int16),
    }
    talks = await asyncio.gather(*(converse(stack, pcm) for pcm in sounds.values()))
    for kind, talk in zip(sounds, talks, strict=True):
        assert committed(talk) == [], kind
        assert [e for e in talk.events if isinstance(e, CallFault)] == [], kind


async def test_clipped_speech_is_still_understood(stack: Stack) -> None:
    loud = np.clip(clip("ps_goforward").astype(np.int32) * 40, -32768, 32767).astype(np.int16)
    talk = await converse(stack, np.concatenate([room(0.3), loud]))
    assert "forward" in plain(" ".join(committed(talk)))


async def test_talk_on_the_command_line_writes_sound_and_trace(tmp_path: Path) -> None:
    wav, out, trace = tmp_path / "in.wav", tmp_path / "out.wav", tmp_path / "trace.json"
    write_wav(wav, np.concatenate([room(3.0), clip("ps_goforward"), room(1.0)]), IN_RATE)
    flags = ["--llm", "smollm2-135m", "--stt", "whisper-tiny.en", "--voice", "piper-joe"]
    done = await asyncio.to_thread(
        subprocess.run,
        command("talk", "--wav", str(wav), "--out", str(out), "--json", str(trace), *flags),
        capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    (turn,) = json.loads(trace.read_text())["turns"]
    assert set(turn) >= {
        "index", "revision", "transcript", "reply", "heard", "interrupted", "voice_to_voice_ms",
        "stages",
    }  # fmt: skip
    assert "forward" in plain(turn["transcript"])
    assert turn["heard"] == turn["reply"]
    assert turn["voice_to_voice_ms"] > 0
    assert turn["stages"]["end_of_turn"] > 0
    assert turn["transcript"].split()[0] in done.stdout
    sound = read_wav(out, OUT_RATE)
    assert sound.source_channels == 2
    assert len(sound.pcm) > 5 * OUT_RATE
    assert np.abs(sound.pcm.astype(np.int32)).max() > 3000


@pytest.mark.parametrize(
    ("content", "word"),
    [(b"", "empty"), (b"RIFF1234WAVEjunk", "WAV"), (b"\x00\x01" * 500, "WAV")],
)
async def test_unusable_files_are_explained(tmp_path: Path, content: bytes, word: str) -> None:
    wav = tmp_path / "in.wav"
    wav.write_bytes(content)
    done = await asyncio.to_thread(
        subprocess.run,
        command("talk", "--wav", str(wav), "--out", str(tmp_path / "o.wav")),
        capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "VA12" in done.stderr + done.stdout
    assert word.lower() in (done.stderr + done.stdout).lower()
    assert "Traceback" not in done.stderr


async def test_a_busy_port_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port()))
        taken.listen()
        port = taken.getsockname()[1]
        done = await asyncio.to_thread(
            subprocess.run,
            command("up", "--port", str(port), "--no-fetch"),
            capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False,
        )  # fmt: skip
    assert done.returncode != 0
    assert "VA470" in done.stderr + done.stdout
    assert "loading" not in done.stderr + done.stdout
