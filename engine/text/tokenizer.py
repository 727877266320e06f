"""Text to token ids and back: byte-level BPE from a GGUF file's metadata or a `tokenizer.json`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tokenizers
from tokenizers import Regex, models, normalizers, pre_tokenizers

from engine.errors import ModelError

_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}@"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_RULES = {"qwen2": _WORDS.replace("@", ""), "llama-bpe": _WORDS.replace("@", "{1,3}")}
"""How text is cut into words before merging, by GGUF's name of the rule."""
_SHIELD = "\ufdd0"
"""A code point that is no character, so that no text has it."""
_CONTROL, _USER_DEFINED = 3, 4
"""GGUF token types that never come from plain text."""


class _Coder(Protocol):
    """What is used of `tokenizers.Tokenizer`."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...


class Tokenizer:
    """Knows one vocabulary. Plain text can't produce a special token unless asked to."""

    def __init__(
        self,
        coder: _Coder,
        vocab: Sequence[str],
        special: dict[str, int],
        *,
        bos: int | None,
        eos: int | None,
        add_bos: bool = False,
    ) -> None:
        """coder: knows no special tokens. vocab: byte-level strings, special ones as they read.

        eos: the declared end; `ends` adds the usual ones. add_bos: sequences start with `bos`.
        """
        self.vocab_size = len(vocab)
        self.special = special
        self.bos = bos
        self.declared_eos = eos
        self.ends = _answer_ends(special, eos)
        """Ids after which nothing more is said."""
        self.add_bos = add_bos
        self._coder = coder
        self._bytes = _vocabulary_bytes(vocab, frozenset(special.values()))
        self._special_ids = frozenset(special.values())
        names = sorted((s for s in special if s), key=len, reverse=True)
        self._split = re.compile("|".join(map(re.escape, names)) or r"(?!)")

    def encode(self, text: str, allow_special: bool = False) -> list[int]:
        """Token ids of text. Special tokens written in it are plain text unless allow_special."""
        if not allow_special:
            return self._plain(text)
        ids: list[int] = []
        for piece in self.split_special(text):
            ids += [piece] if isinstance(piece, int) else self._plain(piece)
        return ids

    def split_special(self, text: str) -> list[str | int]:
        """Text cut at the special tokens written in it: plain pieces and ids, no empty piece."""
        pieces: list[str | int] = []
        at = 0
        for match in self._split.finditer(text):
            pieces += [text[at : match.start()], self.special[match.group()]]
            at = match.end()
        return [piece for piece in [*pieces, text[at:]] if piece != ""]

    def shield(self, text: str) -> str:
        """Text in which `split_special` finds nothing; `unshield` gives it back as it was."""
        return self._split.sub(lambda m: m[0][0] + _SHIELD + m[0][1:], self.unshield(text))

    def unshield(self, text: str) -> str:
        return text.replace(_SHIELD, "")

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Text of ids; bytes that form no character become U+FFFD."""
        skip = self._special_ids if skip_special else frozenset()
        return b"".join(self._bytes[i] for i in ids if i not in skip).decode("utf-8", "replace")

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; empty for an id outside the vocabulary (padding of the model)."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b""

    def special_text(self, token: int | None) -> str:
        """How a special token reads; "" for None."""
        return "" if token is None else self._bytes[token].decode("utf-8")

    def _plain(self, text: str) -> list[int]:
        if not text:
            return []
        clean = text.encode("utf-8", "replace").decode("utf-8")  # lone surrogates can't be encoded
        return list(self._coder.encode(clean, add_special_tokens=False).ids)


def from_gguf(meta: dict[str, Any]) -> Tokenizer:
    """The tokenizer in a GGUF file's metadata. ModelError if its kind is not supported."""
    kind, pre = meta.get("tokenizer.ggml.model"), str(meta.get("tokenizer.ggml.pre", ""))
    if kind != "gpt2":
        raise ModelError(f"tokenizer kind {kind!r} is not supported (supported: gpt2)")
    vocab, merges = meta.get("tokenizer.ggml.tokens"), meta.get("tokenizer.ggml.merges")
    if not vocab or not merges:
        raise ModelError("the GGUF file has no vocabulary or no merges")
    types = meta.get("tokenizer.ggml.token_type") or [1] * len(vocab)
    if len(types) != len(vocab):
        raise ModelError(f"the GGUF file has {len(vocab)} tokens and {len(types)} token types")
    special = {
        text: i
        for i, (text, type_) in enumerate(zip(vocab, types, strict=True))
        if type_ in (_CONTROL, _USER_DEFINED)
    }
    return Tokenizer(
        _bpe(vocab, merges, pre, special),
        vocab,
        special,
        bos=meta.get("tokenizer.ggml.bos_token_id"),
        eos=meta.get("tokenizer.ggml.eos_token_id"),
        add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", pre == "llama-bpe")),
    )


def from_folder(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder (`tokenizer.json`, `tokenizer_config.json`)."""
    try:
        spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
        config_file = folder / "tokenizer_config.json"
        config = json.loads(config_file.read_text("utf-8")) if config_file.exists() else {}
        added = {token["content"]: int(token["id"]) for token in spec.get("added_tokens", [])}
        spec["added_tokens"], spec["post_processor"] = [], None
        table = {**spec["model"]["vocab"], **added}
        coder = tokenizers.Tokenizer.from_str(json.dumps(spec))
    except FileNotFoundError:
        raise ModelError(f"{folder} holds no tokenizer.json") from None
    except Exception as error:  # the library raises bare Exception for a bad file
        raise ModelError(f"{folder / 'tokenizer.json'} can't be used: {error}") from None
    if "ByteLevel" not in json.dumps(spec.get("decoder")):
        raise ModelError("only byte-level BPE tokenizers are supported")
    vocab = [""] * (max(table.values()) + 1)
    for text, number in table.items():
        vocab[number] = text
    bos, eos = (_named(config.get(key), added) for key in ("bos_token", "eos_token"))
    return Tokenizer(
        coder,
        vocab,
        added,
        bos=bos,
        eos=eos,
        add_bos=bool(config.get("add_bos_token", False)) and bos is not None,
    )


def _named(entry: Any, added: dict[str, int]) -> int | None:
    """A token named in tokenizer_config.json, as a string or an object."""
    name = entry.get("content") if isinstance(entry, dict) else entry
    return added.get(name) if isinstance(name, str) else None


def _answer_ends(special: dict[str, int], eos: int | None) -> frozenset[int]:
    """Ids after which nothing is said: the declared one, and the usual ends of turn and text."""
    usual = ("<|im_end|>", "<|eot_id|>", "<|end_of_text|>", "<|endoftext|>", "</s>")
    ends = {special[name] for name in usual if name in special}
    return frozenset(ends | ({eos} if eos is not None else set()))


def _bpe(
    vocab: Sequence[str], merges: Sequence[str], pre: str, special: dict[str, int]
) -> tokenizers.Tokenizer:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    try:
        model = models.BPE(
            vocab={text: i for i, text in enumerate(vocab) if text not in special},
            merges=pairs,
            ignore_merges=pre == "llama-bpe",
        )
    except Exception as error:  # the library raises bare Exception
        raise ModelError(f"the vocabulary can't be used: {error}") from None
    coder = tokenizers.Tokenizer(model)
    if pre == "smollm":
        coder.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ]
        )
    elif pre in _RULES:
        if pre == "qwen2":
            coder.normalizer = normalizers.NFC()
        coder.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_RULES[pre]), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    else:
        raise ModelError(
            f"tokenizer rule {pre!r} is not supported (supported: smollm, qwen2, llama-bpe)"
        )
    return coder


def _byte_of_char() -> dict[str, int]:
    """GPT-2's printable stand-in for every byte, inverted."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + i): byte for i, byte in enumerate(hidden)}


def _vocabulary_bytes(vocab: Sequence[str], special: frozenset[int]) -> list[bytes]:
    table = _byte_of_char()
    out = []
    for number, text in enumerate(vocab):
        plain = number not in special and all(char in table for char in text)
        out.append(bytes(table[c] for c in text) if plain else text.encode("utf-8"))
    return out
