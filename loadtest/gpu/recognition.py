"""Recognition of one utterance: CTranslate2 with real weights where both are here, else a stand-in.

The stand-in is transformers' Whisper of the same configuration with random weights and our short
encoder windows, decoding without a cache: more work and more host time than CTranslate2's.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch

from loadtest.bench.llm.measure import ms, tail
from loadtest.gpu.bench import Bench, Json, Skipped
from loadtest.gpu.voice import spent_ms

SIZES: dict[str, dict[str, int]] = {
    "tiny.en": {"d_model": 384, "layers": 4, "heads": 6, "vocab_size": 51_864, "seconds": 12},
    "base": {"d_model": 512, "layers": 6, "heads": 8, "vocab_size": 51_865, "seconds": 10},
}
"""seconds: the encoder's window for a short utterance (stt/whisper_model.py)."""
TINY = {"d_model": 64, "layers": 1, "heads": 2, "vocab_size": 200, "seconds": 2}
TOKENS = 16
TRIES = 30


def recognition(bench: Bench) -> Json:
    """Passes alone. Raises Skipped where there is neither library."""
    rows = []
    for name in SIZES:
        if bench.left_s() < 2:
            break
        how, once = recogniser(bench, name)
        for _ in range(2):
            once()
        spent = [spent_ms(once) for _ in range(bench.pick(TRIES, 2))]
        rows.append({"model": name, "how": how, "ms": tail(spent)})
    return {"rows": rows}


def recogniser(bench: Bench, name: str) -> tuple[str, Callable[[], object]]:
    """(what it is, one pass of a 3 s utterance, blocking)."""
    real = None if bench.dry else _ctranslate2(bench, name)
    if real is not None:
        return "CTranslate2, fp16", real
    if find_spec("transformers") is None:
        raise Skipped("neither ctranslate2 with a model nor transformers is here")
    return "stand-in: transformers, random weights", stand_in(bench, name)


def _ctranslate2(bench: Bench, name: str) -> Callable[[], object] | None:
    """The product's own recogniser, if its packages and the model are here."""
    try:
        from voice_agent.models import ModelStore
        from voice_agent.stt.whisper_model import WhisperModel

        store = ModelStore()
        if not store.present(f"whisper-{name}"):
            return None
        model = WhisperModel(store.path(f"whisper-{name}"), device=bench.device.type)
    except ImportError:
        return None
    rng = np.random.default_rng(bench.seed)
    pcm = (0.1 * rng.standard_normal(3 * 16_000)).astype(np.float32)
    return lambda: model.decode(pcm)


def stand_in(bench: Bench, name: str) -> Callable[[], object]:
    """One encoder pass over the short window and 16 greedy tokens."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    size = bench.pick(SIZES[name], TINY)
    d, n = size["d_model"], size["layers"]
    config = WhisperConfig(
        d_model=d, encoder_layers=n, decoder_layers=n,
        encoder_attention_heads=size["heads"], decoder_attention_heads=size["heads"],
        encoder_ffn_dim=4 * d, decoder_ffn_dim=4 * d, vocab_size=size["vocab_size"],
        max_source_positions=50 * size["seconds"], pad_token_id=0, bos_token_id=1,
        eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    torch.manual_seed(bench.seed)
    dtype = torch.float32 if bench.dry else torch.float16
    model: Any = WhisperForConditionalGeneration(config).to(bench.device, dtype).eval()
    frames = 100 * size["seconds"]
    features = torch.randn(1, config.num_mel_bins, frames, device=bench.device, dtype=dtype)

    def once() -> list[int]:
        with torch.inference_mode():
            heard = model.get_encoder()(features)
            said = torch.ones(1, 1, dtype=torch.int64, device=bench.device)
            for _ in range(TOKENS):
                out = model(encoder_outputs=heard, decoder_input_ids=said, use_cache=False)
                said = torch.cat((said, out.logits[:, -1:].argmax(-1)), 1)
            tokens: list[int] = said[0].tolist()
            return tokens

    return once


def show(result: Json) -> None:
    for r in result["rows"]:
        print(
            f"  {r['model']:8} p50 {ms(r['ms'], 'p50')} p99 {ms(r['ms'], 'p99')} ms, "
            f"3 s of speech ({r['how']})"
        )
