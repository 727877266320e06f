"""Short timings of this machine (about ten seconds), kept per processor in the data folder."""

from __future__ import annotations

import asyncio
import json
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from voice_agent.choose import (
    KOKORO,
    LAYER_MS,
    LIGHT_VOICE,
    NATIVE_LAYER_MS,
    Speeds,
    VoiceSpeed,
)
from voice_agent.clock import MonotonicClock
from voice_agent.errors import VoiceAgentError
from voice_agent.machine import Machine
from voice_agent.models import ModelStore, data_dir
from voice_agent.tts.base import Clause, Voice
from voice_agent.types import OUT_RATE, Pcm16, PcmF32

log = logging.getLogger(__name__)

VERSION = 2
SENTENCE = "Could you tell me when the next train leaves?"
SHORT = "Sure, of course."
SAMPLE_S = 3.0
SLOW_MS = 600.0
"""A first sound slower than this is not repeated: it cannot be chosen."""
MAX_FOREIGN_LOAD = 0.5
"""Share of all cores; above it a figure says more about the neighbours than about the machine."""

StageFn = Callable[[str], None]


def measure(
    store: ModelStore,
    machine: Machine,
    *,
    device: str = "cpu",
    stage: StageFn = lambda _: None,
    cache: Path | None = None,
    again: bool = False,
) -> Speeds:
    """Speeds of this machine; only what the cache does not hold is measured.

    Recognisers and voices are measured when they are in the store; a voice that does not load (a
    package of its own is missing) is left out. cache: a file; None is one per processor and device
    in the data folder. Raises what loading a damaged recogniser raises.
    """
    busy = foreign_load()
    path = cache or speeds_path(machine, device)
    known = None if again else read_speeds(path)
    threads = max(1, min(2, machine.cores))
    if known is None:
        stage("linear layers")
        decode, prefill = linear_speed(device, threads)
        fast = device != "cpu" or native_kernels()
        layer_ms = NATIVE_LAYER_MS if fast else LAYER_MS
        cores = machine.cores if device == "cpu" else 1
        known = Speeds(device, cores, decode, prefill, {}, {}, layer_ms)
    voices = dict(known.voice)
    sample: Pcm16 | None = None
    for name in (LIGHT_VOICE, KOKORO):
        if name not in voices and store.present(name) and _has_styles(store, name):
            stage(name)
            try:
                voices[name], spoken = voice_speed(load_voice(store, name, threads, device=device))
            except (VoiceAgentError, ImportError) as e:
                log.warning("voice %s cannot be used here: %s", name, e)
                continue
            sample = spoken if sample is None else sample
    stts = dict(known.stt_ms)
    unheard = [n for n in ("whisper-tiny.en", "whisper-base") if n not in stts and store.present(n)]
    if unheard and sample is None and store.present("piper-joe"):
        sample = spoken_sample(load_voice(store, "piper-joe", threads))
    for name in unheard:
        stage(name)
        stts[name] = asyncio.run(_stt_ms(store, name, utterance(sample), device))
    if device != "cpu":
        _give_back()
    speeds = replace(known, stt_ms=stts, voice=voices)
    if speeds != known or again or not path.exists():
        if busy > MAX_FOREIGN_LOAD:
            log.warning("other programs keep this machine busy: the speeds are not kept")
        else:
            write_speeds(path, speeds)
    return speeds


def speeds_path(machine: Machine, device: str) -> Path:
    """Where the speeds of this processor and device are kept."""
    return data_dir() / f"speeds-{machine.key}-{device}.json"


def _give_back() -> None:
    """A GPU's memory that PyTorch keeps for itself counts as full when the KV cache is sized."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


def foreign_load() -> float:
    """Share of all cores in use just now, 0 to 1; this process is idle while it looks."""
    import psutil

    return float(psutil.cpu_percent(interval=0.25)) / 100.0


def native_kernels() -> bool:
    """Whether the engine's native CPU kernels can be used here; builds them the first time."""
    from kernels.build import NativeUnavailable, library

    try:
        library()
    except NativeUnavailable:
        return False
    return True


def linear_speed(device: str, threads: int) -> tuple[float, float]:
    """(GB/s of weights read by one-row products, GFLOP/s of 128-row products).

    A weight counts as one byte whatever it is kept in, so that the figures mean the same to
    `predict`. CPU: the engine's native kernels on 5-bit codes, or fbgemm's int8; GPU: bf16.
    """
    import torch

    shapes = [(896, 4864), (4864, 896), (896, 896), (896, 1152)] * 4
    weights = sum(k * n for k, n in shapes)
    before = torch.get_num_threads()
    one, many = float("inf"), float("inf")
    try:
        # A barrier between threads costs more than it gains while another program has a core.
        for n_threads in sorted({1, threads}):
            torch.set_num_threads(n_threads)
            if device == "cpu":
                products = [_cpu_product(k, n) for k, n in shapes]
            else:
                products = [_gpu_product(k, n, device) for k, n in shapes]
            one = min(one, _best_s(products, 1, device))
            many = min(many, _best_s(products, 128, device))
    finally:
        torch.set_num_threads(before)
    return weights / one / 1e9, 2.0 * weights * 128 / many / 1e9


def load_voice(
    store: ModelStore, name: str, threads: int, style: str = "", *, device: str = "cpu"
) -> Voice:
    """A voice of the registry, or a Piper folder of one's own.

    style: one of Kokoro's voices; "" is its default. device "cuda": Kokoro in PyTorch there; what
    else there is runs through onnxruntime on the CPU. Raises the store's errors and the voice's.
    """
    if name != KOKORO:
        from voice_agent.tts.piper import PiperVoice

        return PiperVoice(store.path(name), threads=threads)
    from voice_agent.tts.kokoro_text import DEFAULT_STYLE

    files, style = (store.path(name), store.path("kokoro-voices")), style or DEFAULT_STYLE
    if device != "cpu":
        from voice_agent.tts.kokoro_torch import KokoroTorchVoice

        return KokoroTorchVoice(*files, style=style, device=device)
    from voice_agent.tts.kokoro_onnx import KokoroOnnxVoice

    return KokoroOnnxVoice(*files, style=style, threads=threads)


def voice_speed(voice: Voice) -> tuple[VoiceSpeed, Pcm16]:
    """First sound of a short clause, real-time factor of a sentence, and that sentence's sound."""
    voice.warm()
    first: list[float] = []
    for _ in range(3):
        start = time.perf_counter()
        next(iter(voice.synthesize(clause(SHORT), speed=1.0, cancelled=lambda: False)))
        first.append((time.perf_counter() - start) * 1000.0)
        if first[-1] > SLOW_MS:
            break
    start = time.perf_counter()
    pcm = spoken_sample(voice)
    spent = time.perf_counter() - start
    return VoiceSpeed(min(first), spent / (len(pcm) / OUT_RATE)), pcm


def spoken_sample(voice: Voice) -> Pcm16:
    """`SENTENCE` as sound, int16 [n] at 24 kHz."""
    spoken = voice.synthesize(clause(SENTENCE), speed=1.0, cancelled=lambda: False)
    return np.concatenate([p.pcm for p in spoken])


def clause(text: str) -> Clause:
    """`text` as one clause, words for the ear included."""
    from voice_agent.clauses import ClauseSplitter

    splitter = ClauseSplitter()
    found = [*splitter.push(text), *splitter.finish()]
    words = tuple(w for c in found for w in c.words)
    return Clause(0, text, (0, len(text)), words)


def read_speeds(path: Path) -> Speeds | None:
    """None when there is no cache, or one of another version."""
    try:
        body = json.loads(path.read_text("utf-8"))
        if body["version"] != VERSION:
            return None
        return Speeds(
            device=str(body["device"]),
            cores=int(body["cores"]),
            decode_gb_s=float(body["decode_gb_s"]),
            prefill_gflops=float(body["prefill_gflops"]),
            stt_ms={str(k): float(v) for k, v in body["stt_ms"].items()},
            voice={str(k): VoiceSpeed(*map(float, v)) for k, v in body["voice"].items()},
            layer_ms=float(body["layer_ms"]),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_speeds(path: Path, speeds: Speeds) -> None:
    """Best effort: a folder that cannot be written only means measuring again."""
    body = {
        "version": VERSION,
        "device": speeds.device,
        "cores": speeds.cores,
        "decode_gb_s": speeds.decode_gb_s,
        "prefill_gflops": speeds.prefill_gflops,
        "layer_ms": speeds.layer_ms,
        "stt_ms": dict(speeds.stt_ms),
        "voice": {k: [v.first_ms, v.rtf] for k, v in speeds.voice.items()},
    }
    draft = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(body, indent=1), "utf-8")
        draft.replace(path)
    except OSError as e:
        log.warning("measured speeds are not kept: %s", e)


def _cpu_product(k: int, n: int) -> Callable[[int], object]:
    import torch

    rows = {1: torch.randn(1, k), 128: torch.randn(128, k)}
    if native_kernels():
        from kernels.linear_group.cpu import PackedLinear
        from kernels.linear_group.spec import quantise

        linear = PackedLinear(quantise(torch.randn(n, k) * 0.05, bits=5))
        return lambda m: linear(rows[m])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the packed form has no other door yet
        weight = torch.quantize_per_tensor(torch.randn(n, k) * 0.05, 0.01, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    return lambda m: torch.ops.quantized.linear_dynamic(rows[m], packed)


def _gpu_product(k: int, n: int, device: str) -> Callable[[int], object]:
    import torch

    weight = torch.randn(n, k, device=device, dtype=torch.bfloat16)
    rows = {m: torch.randn(m, k, device=device, dtype=torch.bfloat16) for m in (1, 128)}
    return lambda m: torch.nn.functional.linear(rows[m], weight)


def _best_s(
    products: Sequence[Callable[[int], object]], rows: int, device: str, repeats: int = 15
) -> float:
    """The shortest of a few runs, or of as many as fit a second; seconds."""
    import torch

    best, begin = float("inf"), time.perf_counter()
    for n in range(repeats):
        start = time.perf_counter()
        for product in products:
            product(rows)
        if device != "cpu":
            torch.cuda.synchronize()
        now = time.perf_counter()
        if n:  # the first run allocates
            best = min(best, now - start)
        if n > 1 and now - begin > 1.0:
            break
    return best


async def _stt_ms(store: ModelStore, name: str, pcm: PcmF32, device: str) -> float:
    from voice_agent.stt.whisper import WhisperRecognizer

    recognizer = WhisperRecognizer(
        store.path(name), threads=1, clock=MonotonicClock(), device=device
    )
    try:
        recognizer.warm()
        spent: list[float] = []
        for _ in range(3):
            start = time.perf_counter()
            await recognizer.transcribe(pcm, final=True)
            spent.append((time.perf_counter() - start) * 1000.0)
        return min(spent)
    finally:
        recognizer.close()


def utterance(spoken: Pcm16 | None) -> PcmF32:
    """About 3 s at 16 kHz: what the voice said, else a tone that keeps the encoder as busy."""
    n = int(SAMPLE_S * 16_000)
    if spoken is None:
        t = np.arange(n, dtype=np.float32) / 16_000
        return (0.1 * np.sin(2 * np.pi * 220 * t)).astype(np.float32)
    import soxr

    pcm = soxr.resample(spoken.astype(np.float32) / 32768.0, OUT_RATE, 16_000)
    return np.pad(pcm, (0, max(0, n - len(pcm))))[:n].astype(np.float32)


def _has_styles(store: ModelStore, name: str) -> bool:
    return name != KOKORO or store.present("kokoro-voices")
