"""A tiny byte-level vocabulary with ChatML tokens, as GGUF metadata or a tokenizer folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_meta(pre: str, template: str = CHATML) -> dict[str, Any]:
    tokens = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.token_type": [3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)),
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }


def write_folder(folder: Path, meta: dict[str, Any]) -> None:
    """The same as `tokenizer.json` and `tokenizer_config.json` (rule: smollm)."""
    vocab = {text: i for i, text in enumerate(meta["tokenizer.ggml.tokens"])}
    pairs = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "bos_token": SPECIAL[0],
                "eos_token": {"content": SPECIAL[2]},
                "chat_template": meta["tokenizer.chat_template"],
            }
        )
    )
