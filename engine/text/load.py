"""The text side of a model: tokenizer and chat format, from a GGUF file or a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from engine.errors import ModelError
from engine.models.gguf_file import GgufFile
from engine.models.weights import read_json
from engine.text.chat import ChatFormat
from engine.text.template import ChatTemplate
from engine.text.tokenizer import Tokenizer, from_folder, from_gguf


def load_text(path: Path) -> tuple[Tokenizer, ChatFormat]:
    """Reads and verifies both. ModelError when the file is unusable or has no chat template."""
    if path.is_dir():
        tokenizer, source = from_folder(path), _folder_template(path)
    else:
        file = GgufFile(path)
        try:
            tokenizer, source = from_gguf(file.meta), file.meta.get("tokenizer.chat_template")
        finally:
            file.close()
    if not source:
        raise ModelError(f"{path} has no chat template: an instruct model is needed")
    bos, eos = tokenizer.special_text(tokenizer.bos), tokenizer.special_text(tokenizer.declared_eos)
    return tokenizer, ChatFormat(tokenizer, ChatTemplate(str(source), bos=bos, eos=eos))


def _folder_template(folder: Path) -> Any:
    file = folder / "chat_template.jinja"
    if file.exists():
        return file.read_text(encoding="utf-8")
    source = read_json(folder / "tokenizer_config.json").get("chat_template")
    if isinstance(source, list):  # several named ones
        named = {entry.get("name"): entry.get("template") for entry in source}
        return named.get("default")
    return source
