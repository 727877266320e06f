"""Negative log likelihoods through llama.cpp's C interface: `perplexity.py MODEL < windows.json`.

windows: lists of token ids. Prints one JSON list: per window, the nats of every token but the
first. The interface's big parameter structs are passed as opaque bytes; only their leading numbers
(context length, batch sizes), unchanged for years, are set.
"""

import ctypes
import json
import sys
from typing import Any

import numpy as np
import xllamacpp.xllamacpp as library  # type: ignore[import-not-found]

THREADS = 2


class Opaque(ctypes.Structure):
    """Room for a parameter struct of any size in use."""

    _fields_ = [("words", ctypes.c_uint32 * 256)]


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def bound(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(library.__file__), name)
    function.restype, function.argtypes = result, list(arguments)
    return function


def main(path: str, windows: list[list[int]]) -> list[list[float]]:
    pointer = ctypes.c_void_p
    bound("llama_backend_init", None)()
    model_params = bound("llama_model_default_params", Opaque)()
    model = bound("llama_model_load_from_file", pointer, ctypes.c_char_p, Opaque)(
        path.encode(), model_params
    )
    params = bound("llama_context_default_params", Opaque)()
    longest = max(len(window) for window in windows)
    for at in range(3):  # n_ctx, n_batch, n_ubatch
        params.words[at] = longest
    context = bound("llama_init_from_model", pointer, pointer, Opaque)(model, params)
    if not model or not context:
        raise SystemExit(f"{path} can't be loaded")
    bound("llama_set_n_threads", None, pointer, ctypes.c_int32, ctypes.c_int32)(
        context, THREADS, THREADS
    )
    vocab = bound("llama_model_get_vocab", pointer, pointer)(model)
    n_vocab = bound("llama_vocab_n_tokens", ctypes.c_int32, pointer)(vocab)
    decode = bound("llama_decode", ctypes.c_int32, pointer, Batch)
    logits_at = bound(
        "llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), pointer, ctypes.c_int32
    )
    memory = bound("llama_get_memory", pointer, pointer)(context)
    clear = bound("llama_memory_clear", None, pointer, ctypes.c_bool)
    batch = bound("llama_batch_init", Batch, ctypes.c_int32, ctypes.c_int32, ctypes.c_int32)(
        longest, 0, 1
    )
    out = []
    for window in windows:
        clear(memory, True)
        batch.n_tokens = len(window)
        for i, token in enumerate(window):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, 1
        if decode(context, batch) != 0:
            raise SystemExit("llama_decode failed")
        nats = []
        for i, target in enumerate(window[1:]):
            row = np.ctypeslib.as_array(logits_at(context, i), (n_vocab,)).astype(np.float64)
            top = row.max()
            nats.append(float(top + np.log(np.exp(row - top).sum()) - row[target]))
        out.append(nats)
    return out


if __name__ == "__main__":
    json.dump(main(sys.argv[1], json.load(sys.stdin)), sys.stdout)
