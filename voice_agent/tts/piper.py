"""The light voice: a Piper (VITS) export run through onnxruntime, streamed in short windows.

The exported graph is cut in two at the input of its vocoder. The first half (text, durations, flow)
runs once per clause and gives, besides the latent frames, how many frames each phoneme lasts: exact
word times. The vocoder is convolutional with a short reach, so windows of frames with a margin give
the same samples as the whole at once (differences below 1e-6); the first window is short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from threading import Lock
from time import thread_time
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from voice_agent.errors import InternalError, UsageError
from voice_agent.service_time import ServiceTime
from voice_agent.types import PcmF32

from .base import AudioPiece, Clause, WordTime
from .espeak import Espeak
from .onnx_graph import OnnxGraph
from .phrases import parts
from .sound import Resampler, fade_in, fade_out, silence, to_pcm16

PAD, BOS, EOS, GAP = "_", "^", "$", " "
MARGIN = 12  # frames of reach to either side of the vocoder
WINDOWS = (32, 64, 96)  # frames at most; the last repeats
LATER = 1  # of them, with which a reply's later clauses begin: there is sound until then
PIECE_WORK_S = 0.08  # a piece can't be interrupted: it gets no more frames than this allows,
# in processor time: margins make shorter windows dearer, the more so the busier the machine is
MAX_WORDS = 24  # longer clauses are run in parts
PART_WORDS = 14
LEAD_FRAMES = 1  # kept before the first phoneme
TAIL_FRAMES = 6  # kept after the last phoneme: about 70 ms of decay
GAIN = 1.4  # brings the voice to about -21 dBFS; the limiter takes the few peaks


@dataclass(frozen=True, slots=True)
class _Settings:
    rate: int
    espeak_voice: str
    ids: dict[str, list[int]]
    noise: float
    noise_w: float
    length: float


@dataclass(frozen=True, slots=True)
class _Phrase:
    """Latent frames [1, C, n] of a run of words, cut to [begin, end), and word spans in frames."""

    latent: NDArray[np.float32]
    begin: int
    end: int
    spans: list[tuple[int, int] | None]


class PiperVoice:
    """One voice of the Piper project. `model_dir` holds NAME.onnx and NAME.onnx.json.

    Raises UsageError for a folder that holds no such voice, InternalError for a damaged model.
    """

    exact_times = True

    def __init__(self, model_dir: Path, threads: int = 1) -> None:
        self._decoding = ServiceTime()  # over the frames of a window, margins included
        self._noting = Lock()
        model = _find_model(Path(model_dir))
        self._settings = _read_settings(model)
        self.name = model.stem
        graph = OnnxGraph(model)
        durations, latent = _cut_points(graph, model)
        self._latent_name = latent
        self._front = _session(graph.extract([durations, latent]), threads, model)
        vocoder = graph.extract(graph.outputs, inputs=[latent], input_rank=3)
        self._vocoder = _session(vocoder, threads, model)
        self._channels = self._probe_channels(model)
        probe = np.zeros((1, self._channels, 8), np.float32)
        self._hop = len(self._decode(probe)) // 8
        self._espeak = Espeak(self._settings.espeak_voice)

    def _probe_channels(self, model: Path) -> int:
        ids = self._sequence([])[0]
        latent = self._run_front(ids, 1.0)[1]
        if latent.ndim != 3 or latent.shape[0] != 1:
            raise InternalError(f"{model.name}: unexpected latent shape {latent.shape}")
        return int(latent.shape[1])

    def warm(self) -> None:
        from voice_agent.clauses import ClauseSplitter

        for text in ("Hello there.", "This is how a somewhat longer sentence sounds, I believe."):
            for clause in ClauseSplitter().push(text + " "):
                for _ in self.synthesize(clause, speed=1.0, cancelled=lambda: False):
                    pass

    def synthesize(
        self, clause: Clause, *, speed: float, cancelled: Callable[[], bool]
    ) -> Iterator[AudioPiece]:
        """24 kHz pieces of at most about 1.1 s, a reply's first about 0.4 s, shorter where this
        machine would work on one for longer than `PIECE_WORK_S`. Raises InternalError on silence
        for spoken words."""
        if not clause.words:
            yield AudioPiece(silence(0), (), True)
            return
        resampler = Resampler(self._settings.rate)
        runs = parts([word.text for word in clause.words], MAX_WORDS, PART_WORDS)
        done = peak = 0  # samples (model rate) before this part; loudest sample
        first_word = 0
        window = chain(WINDOWS[LATER if clause.index else 0 :], repeat(WINDOWS[-1]))
        for number, words in enumerate(runs):
            phrase = self._phrase(words, speed)
            times = self._times(phrase, first_word, done, resampler)
            at = phrase.begin
            while at < phrase.end:
                if cancelled():
                    return
                upto = min(phrase.end, at + self._frames(next(window)))
                if phrase.end - upto < WINDOWS[0] // 2:
                    upto = phrase.end
                sound = self._window(phrase.latent, at, upto)
                if at == phrase.begin:
                    sound = fade_in(sound, self._settings.rate)
                over = upto == phrase.end
                if over:
                    sound = fade_out(sound, self._settings.rate)
                last = over and number == len(runs) - 1
                pcm = to_pcm16(resampler.push(sound, last=last), GAIN)
                peak = max(peak, int(np.abs(pcm).max(initial=0)))
                done += len(sound)
                if last:
                    if peak < 64:
                        raise InternalError(f"{self.name} gave silence for {clause.spoken!r}")
                    pcm = np.concatenate([pcm, silence(clause.pause_ms)])
                upto_sample = resampler.position(done)
                now = [w for w in times if last or w.start < upto_sample]
                times = times[len(now) :]
                yield AudioPiece(pcm, tuple(now), last)
                at = upto
            first_word += len(words)

    def _phrase(self, words: Sequence[str], speed: float) -> _Phrase:
        phonemes = self._espeak.words(words)
        ids, places = self._sequence(phonemes)
        durations, latent = self._run_front(ids, speed)
        ends = np.cumsum(durations)
        frames = int(ends[-1])
        if frames != latent.shape[2] or not frames:
            raise InternalError(f"{self.name}: {frames} frames expected, got {latent.shape[2]}")
        spans: list[tuple[int, int] | None] = [
            (int(ends[a - 1]) if a else 0, int(ends[b - 1])) if b > a else None for a, b in places
        ]
        sounding = [span for span in spans if span]
        begin = max(0, sounding[0][0] - LEAD_FRAMES) if sounding else 0
        end = min(frames, sounding[-1][1] + TAIL_FRAMES) if sounding else frames
        return _Phrase(latent, begin, end, spans)

    def _sequence(self, phonemes: Sequence[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids with the pads between them, and per word the ids [a, b) of its sounding phonemes."""
        table = self._settings.ids
        pad = table[PAD]
        ids = [*table[BOS], *pad]
        places: list[tuple[int, int]] = []
        for i, word in enumerate(phonemes):
            if i and word:
                ids += [*table[GAP], *pad]
            a = b = len(ids)
            for char in word:
                if char not in table:
                    continue
                ids += [*table[char], *pad]
                if char not in ";:,.!?":
                    b = len(ids)
            places.append((a, b))
        return [*ids, *table[EOS]], places

    def _run_front(
        self, ids: Sequence[int], speed: float
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        s = self._settings
        feed = {
            "input": np.array([ids], np.int64),
            "input_lengths": np.array([len(ids)], np.int64),
            "scales": np.array([s.noise, s.length / speed, s.noise_w], np.float32),
        }
        durations, latent = self._front.run(None, feed)
        return durations.reshape(-1).astype(np.int64), latent

    def _decode(self, latent: NDArray[np.float32]) -> PcmF32:
        sound = self._vocoder.run(None, {self._latent_name: np.ascontiguousarray(latent)})[0]
        return np.asarray(sound, np.float32).reshape(-1)

    def _window(self, latent: NDArray[np.float32], at: int, upto: int) -> PcmF32:
        """Samples of frames [at, upto)."""
        left, began_s = max(0, at - MARGIN), thread_time()
        sound = self._decode(latent[:, :, left : upto + MARGIN])
        with self._noting:
            self._decoding.note(thread_time() - began_s, upto - at + 2 * MARGIN)
        return sound[(at - left) * self._hop : (upto - left) * self._hop]

    def _frames(self, most: int) -> int:
        """Of the next window: as many as can be decoded in time, `WINDOWS[0]` at least."""
        frames = most
        while frames > WINDOWS[0] and self._decoding.seconds(frames + 2 * MARGIN) > PIECE_WORK_S:
            frames -= 8
        return frames

    def _times(
        self, phrase: _Phrase, first_word: int, done: int, resampler: Resampler
    ) -> list[WordTime]:
        out: list[WordTime] = []
        for i, span in enumerate(phrase.spans):
            if span is None:
                continue
            start, end = ((f - phrase.begin) * self._hop + done for f in span)
            out.append(WordTime(first_word + i, resampler.position(start), resampler.position(end)))
        return out


def _find_model(folder: Path) -> Path:
    models = [folder] if folder.suffix == ".onnx" else sorted(folder.glob("*.onnx"))
    models = [m for m in models if Path(f"{m}.json").is_file() and m.is_file()]
    if len(models) != 1:
        raise UsageError(f"{folder} must hold exactly one Piper voice (NAME.onnx, NAME.onnx.json)")
    return models[0]


def _read_settings(model: Path) -> _Settings:
    try:
        raw: dict[str, Any] = json.loads(Path(f"{model}.json").read_text("utf-8"))
        if raw.get("num_speakers", 1) != 1:
            raise UsageError(f"{model.name} has several speakers; only single voices can be used")
        knobs = raw["inference"]
        ids = {key: [int(i) for i in value] for key, value in raw["phoneme_id_map"].items()}
        if not {PAD, BOS, EOS, GAP} <= ids.keys():
            raise KeyError("phoneme_id_map")
        return _Settings(
            rate=int(raw["audio"]["sample_rate"]),
            espeak_voice=str(raw["espeak"]["voice"]),
            ids=ids,
            noise=float(knobs["noise_scale"]),
            noise_w=float(knobs["noise_w"]),
            length=float(knobs["length_scale"]),
        )
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"{model.name}.json is not a Piper voice's settings: {error}") from error


def _cut_points(graph: OnnxGraph, model: Path) -> tuple[str, str]:
    """Names of the durations (frames per phoneme) and of the vocoder's input."""
    durations = [node.outputs[0] for node in graph.nodes if node.op == "Ceil"]
    latent = [n.inputs[0] for n in graph.nodes if n.op == "Conv" and "conv_pre" in n.name]
    if len(durations) != 1 or len(latent) != 1 or len(graph.outputs) != 1:
        raise UsageError(f"{model.name} is not a Piper (VITS) voice")
    return durations[0], latent[0]


def _session(model: bytes, threads: int, path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exception types share no base
        raise InternalError(f"{path.name} cannot be loaded: {error}") from error
