"""Everything one call took in, with times: what replays it. A file of it is a ZIP archive.

    call.json     head, controls, model outputs, decisions (voice probabilities as they were)
    caller.flac   the caller's frames as the call got them, 16 kHz mono
    voice.flac    the sound that voices made, piece after piece, 24 kHz mono

Times are seconds since the call was made. FLAC (RFC 9639) is lossless, so nothing is rounded.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
from pydantic import TypeAdapter, ValidationError

from voice_agent.errors import UsageError
from voice_agent.types import IN_FRAME, IN_RATE, OUT_RATE, Frame, FrameFlag, Pcm16

VERSION = 1
SUFFIX = ".call"
BAD_FILE = "VA490"
COARSE = np.int16(1 << 10)
MAX_BYTES = 512 << 20  # of one archive's parts, unpacked


@dataclass(slots=True)
class SttTake:
    """One pass of recognition over `samples` of an utterance, asked for after `frame` frames."""

    asked_s: float
    frame: int
    samples: int
    done_s: float = 0.0
    words: tuple[str, ...] = ()
    n_confirmed: int = 0
    no_speech_prob: float = 0.0
    logprob: float = 0.0
    error: str = ""


@dataclass(slots=True)
class ScoreTake:
    """One estimate of the end-of-turn model; p: None if it had no time."""

    asked_s: float
    frame: int
    done_s: float = 0.0
    p: float | None = None


@dataclass(slots=True)
class EndTake:
    """What the language model made of the words at a pause; log_odds: None if it had no time."""

    asked_s: float
    frame: int
    done_s: float = 0.0
    log_odds: float | None = None


@dataclass(slots=True)
class Delta:
    """A piece of model text. tokens: how many it was made of."""

    at_s: float
    text: str
    tokens: int = 0
    finish: str | None = None
    fresh: bool = False


@dataclass(slots=True)
class ThoughtTake:
    """One answer of the language model. asked: the prompt's last message."""

    asked_s: float
    asked: str
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    backend: str = ""
    fallback: str = ""
    error: str = ""
    done_s: float = 0.0
    deltas: list[Delta] = field(default_factory=list)


@dataclass(slots=True)
class Piece:
    """Samples [start, start + n) of the voices' sound. words: (index, start, end) of WordTime."""

    at_s: float
    start: int
    n: int
    words: tuple[tuple[int, int, int], ...]
    last: bool


@dataclass(slots=True)
class VoiceTake:
    """One clause spoken, made for the call or before it."""

    asked_s: float
    spoken: str
    speed: float
    error: str = ""
    done_s: float = 0.0
    pieces: list[Piece] = field(default_factory=list)


@dataclass(slots=True)
class ToolTake:
    asked_s: float
    name: str
    done_s: float = 0.0
    result: str | None = None
    error: str = ""


@dataclass(slots=True)
class Control:
    """What the transport or client asked of the call: a method or attribute of `Call`, by name."""

    at_s: float
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


@dataclass(slots=True)
class Taken:
    """One decision as it is compared: `key` is (what, turn, revision, cause) of it."""

    at_s: float
    key: tuple[str, int, int, str]
    why: dict[str, bool | int | float | str] = field(default_factory=dict)


@dataclass(slots=True)
class Head:
    """What the call was made with. tools: declarations and limits, without where they run."""

    agent: dict[str, Any]
    tools: list[dict[str, Any]]
    models: dict[str, str]
    prompt_version: str
    voice: str
    target_s: float
    answer_within_s: float
    max_context: int
    lead_ms: int
    smart_turn: bool
    announcement: str
    early: dict[str, bool | float]
    version: int = VERSION


@dataclass(slots=True)
class Tape:
    """A recorded call. frame_flags: one letter a frame, the first of `FrameFlag`'s names."""

    head: Head
    run_at_s: float = 0.0
    ended_s: float = 0.0
    cut: bool = False
    """The call went on after the tape's end."""
    reason: str = ""
    frame_times: list[float] = field(default_factory=list)
    frame_flags: str = ""
    tick_times: list[float] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    shed: list[tuple[float, int]] = field(default_factory=list)
    """When load stopped early work or let it go on, and how much (`early.Shed`)."""
    ahead: list[tuple[int, int]] = field(default_factory=list)
    """Prompt tokens computed ahead and taken back, each time it was asked for."""
    vad: list[tuple[float, float]] = field(default_factory=list)
    stt: list[SttTake] = field(default_factory=list)
    scores: list[ScoreTake] = field(default_factory=list)
    ends: list[EndTake] = field(default_factory=list)
    thoughts: list[ThoughtTake] = field(default_factory=list)
    voice: list[VoiceTake] = field(default_factory=list)
    tools: list[ToolTake] = field(default_factory=list)
    decisions: list[Taken] = field(default_factory=list)


_TAPE: TypeAdapter[Tape] = TypeAdapter(Tape)
_FLAGS = {"r": FrameFlag.RECEIVED, "v": FrameFlag.RECOVERED, "c": FrameFlag.CONCEALED,
          "s": FrameFlag.SILENCE}  # fmt: skip
_LETTERS = {flag: letter for letter, flag in _FLAGS.items()}


@dataclass(slots=True)
class Recorded:
    """A tape and its sound. caller: int16 [320 a frame], 16 kHz; sound: int16 [n], 24 kHz."""

    tape: Tape
    caller: Pcm16
    sound: Pcm16

    def frame(self, k: int) -> Frame:
        pcm = self.caller[k * IN_FRAME : (k + 1) * IN_FRAME]
        return Frame(pcm, _FLAGS[self.tape.frame_flags[k]])


def letter(flag: FrameFlag) -> str:
    return _LETTERS[flag]


def thinned(recorded: Recorded) -> Recorded:
    """The same call in a quarter of the bytes: our own voice with 6 bits a sample, loud where it
    was. No decision looks at more of it."""
    coarse: Pcm16 = (recorded.sound // COARSE * COARSE).astype(np.int16)
    return Recorded(recorded.tape, recorded.caller, coarse)


def save(recorded: Recorded, path: Path) -> None:
    """Write the archive, readable by its owner only; it appears whole or not at all."""
    body = json.dumps(asdict(recorded.tape), ensure_ascii=False, default=str)
    part = path.with_name(path.name + ".part")
    private = os.open(part, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    with (
        os.fdopen(private, "w+b") as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        archive.writestr("call.json", body)
        archive.writestr("caller.flac", _flac(recorded.caller, IN_RATE), zipfile.ZIP_STORED)
        archive.writestr("voice.flac", _flac(recorded.sound, OUT_RATE), zipfile.ZIP_STORED)
    part.replace(path)


def load(path: Path) -> Recorded:
    """Raises UsageError VA490 for a file that is no recorded call."""
    try:
        with zipfile.ZipFile(path) as archive:
            if sum(info.file_size for info in archive.infolist()) > MAX_BYTES:
                raise UsageError(f"{path} is too large for a recorded call", code=BAD_FILE)
            body = archive.read("call.json")
            caller = _unflac(archive.read("caller.flac"))
            sound = _unflac(archive.read("voice.flac"))
        tape = _TAPE.validate_json(body)
    except (OSError, KeyError, zipfile.BadZipFile, ValidationError, av.FFmpegError) as e:
        raise UsageError(f"{path} is no recorded call: {type(e).__name__}", code=BAD_FILE) from e
    if tape.head.version != VERSION:
        raise UsageError(
            f"{path} has version {tape.head.version}; this is {VERSION}", code=BAD_FILE
        )
    n = len(tape.frame_times)
    if len(caller) != n * IN_FRAME or len(tape.frame_flags) != n:
        raise UsageError(f"{path} has {len(caller)} samples for {n} frames", code=BAD_FILE)
    return Recorded(tape, caller, sound)


def _flac(pcm: Pcm16, rate: int) -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="flac") as container:
        stream = container.add_stream("flac", rate=rate, options={"compression_level": "8"})
        stream.layout, stream.format = "mono", "s16"
        samples = pcm if len(pcm) else np.zeros(1, np.int16)  # an empty stream has no header
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    return out.getvalue()


def _unflac(data: bytes) -> Pcm16:
    with av.open(io.BytesIO(data)) as container:
        parts = [frame.to_ndarray().reshape(-1) for frame in container.decode(audio=0)]
    pcm: Pcm16 = np.concatenate(parts).astype(np.int16, copy=False)
    return pcm if len(pcm) > 1 else np.zeros(0, np.int16)
