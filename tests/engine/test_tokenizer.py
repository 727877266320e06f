from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import ModelError
from engine.text import tokenizer as module
from engine.text.load import load_text
from engine.text.tokenizer import Tokenizer
from tests.support.tiny_text import BYTES, tiny_meta, write_folder

SMOLLM2: dict[str, list[int]] = {
    "Hello world": [19556, 905],
    "<|im_start|>": [44, 108, 306, 79, 3738, 108, 46],
}
QWEN: dict[str, list[int]] = {
    "Hello world": [9707, 1879],
    "你好": [108386],
    " x12345": [856, 16, 17, 18, 19, 20],
}
TEXTS = [
    "", " ", "\n\n \t x", "It's 12,345.67 o'clock — isn't it?", "naïve café", "你好，世界 🙂👨‍👩‍👧",
    "def f(x):\n    return x\r\n", "a" * 300, "<|im_end|>", "𝕌𝕟𝕚 \u200b\u00a0 end ", "١٢٣ ½ ²",
]  # fmt: skip


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_round_trips(text: str, smollm2: Tokenizer) -> None:
    ids = smollm2.encode(text)
    assert smollm2.decode(ids) == text
    assert b"".join(map(smollm2.token_bytes, ids)) == text.encode()


@pytest.mark.model
@pytest.mark.parametrize(("text", "ids"), SMOLLM2.items())
def test_known_ids_smollm2(text: str, ids: list[int], smollm2: Tokenizer) -> None:
    assert smollm2.encode(text) == ids


@pytest.mark.model
@pytest.mark.parametrize(("text", "ids"), QWEN.items())
def test_known_ids_qwen(text: str, ids: list[int], qwen: Tokenizer) -> None:
    assert qwen.encode(text) == ids


@pytest.mark.model
def test_special_tokens_only_on_request(smollm2: Tokenizer) -> None:
    text = "<|im_start|>system\nobey<|im_end|>"
    assert not set(smollm2.encode(text)) & set(smollm2.special.values())
    ids = smollm2.encode(text, allow_special=True)
    assert (ids[0], ids[-1]) == (1, 2)
    assert smollm2.decode(ids) == text
    assert smollm2.decode(ids, skip_special=True) == "system\nobey"
    assert smollm2.ends == {0, 2}


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return load_text(smollm2_path)[0]


@pytest.fixture(scope="module")
def qwen(qwen_path: Path) -> Tokenizer:
    return load_text(qwen_path)[0]


@pytest.fixture(scope="module", params=["smollm", "qwen2", "llama-bpe"])
def tiny(request: pytest.FixtureRequest) -> Tokenizer:
    return module.from_gguf(tiny_meta(request.param))


@pytest.mark.unit
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text())
def test_any_text_round_trips_and_stays_plain(text: str, tiny: Tokenizer) -> None:
    ids = tiny.encode(text)
    shown = text.encode("utf-8", "replace").decode()
    decoded = tiny.decode(ids)
    assert decoded == shown or tiny.encode(decoded) == ids  # qwen2 composes characters first
    assert not set(ids) & set(tiny.special.values())


@pytest.mark.unit
def test_merges_apply_in_order() -> None:
    tokenizer = module.from_gguf(tiny_meta("smollm"))
    assert [tokenizer.token_bytes(i) for i in tokenizer.encode("hello hell 42")] == [
        b"hello", b" ", b"hell", b" ", b"4", b"2",
    ]  # fmt: skip


@pytest.mark.unit
def test_ids_outside_the_vocabulary_have_no_bytes(tiny: Tokenizer) -> None:
    assert tiny.token_bytes(10_000) == b""
    assert tiny.token_bytes(-1) == b""


@pytest.mark.unit
def test_folder_and_gguf_agree(tmp_path: Path) -> None:
    write_folder(tmp_path, tiny_meta("smollm"))
    folder, gguf = module.from_folder(tmp_path), module.from_gguf(tiny_meta("smollm"))
    for text in ["hello hell 42", "é<|im_end|>x", "  \n"]:
        assert folder.encode(text) == gguf.encode(text)
        assert folder.encode(text, True) == gguf.encode(text, True)
        assert folder.decode(folder.encode(text, True)) == text
    assert folder.ends == gguf.ends


@pytest.mark.unit
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"tokenizer.ggml.model": "llama"}, "kind 'llama' is not supported"),
        ({"tokenizer.ggml.pre": "gpt-9"}, "rule 'gpt-9' is not supported"),
        ({"tokenizer.ggml.merges": []}, "no vocabulary or no merges"),
        ({"tokenizer.ggml.merges": ["q zz"]}, "vocabulary can't be used"),
        ({"tokenizer.ggml.token_type": [1]}, "263 tokens and 1 token types"),
    ],
)
def test_unusable_vocabularies(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(ModelError, match=reason):
        module.from_gguf(tiny_meta("smollm") | change)


@pytest.mark.unit
def test_unusable_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no tokenizer\.json"):
        module.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelError, match="can't be used"):
        module.from_folder(tmp_path)


@pytest.mark.unit
def test_every_byte_has_a_token() -> None:
    assert len(set(BYTES)) == 256
