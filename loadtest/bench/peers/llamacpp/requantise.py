"""Writes a GGUF file's matrices in another format: `requantise.py SOURCE TARGET q8_0|q4_0`.

llama.cpp's own routine does the rounding. As its tool does, q4_0 keeps embedding and output in
Q6_K, or in Q8_0 where rows are no multiple of 256.
"""

import ctypes
import sys
from typing import Any

import gguf
import numpy as np
import xllamacpp.xllamacpp as library  # type: ignore[import-not-found]
from gguf import GGMLQuantizationType as Kind

KINDS = {"q8_0": Kind.Q8_0, "q4_0": Kind.Q4_0}
_chunk = ctypes.CDLL(library.__file__).ggml_quantize_chunk
_chunk.restype = ctypes.c_size_t
_chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * 3]
_chunk.argtypes += [ctypes.c_void_p]


def main(source: str, target: str, name: str) -> None:
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        sub = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=sub)
    for tensor in reader.tensors:
        wide = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        if wide.ndim < 2:
            writer.add_tensor(tensor.name, wide)
            continue
        kind = KINDS[name]
        if tensor.name in ("token_embd.weight", "output.weight") and name == "q4_0":
            kind = Kind.Q8_0 if wide.shape[1] % 256 else Kind.Q6_K
        writer.add_tensor(tensor.name, quantised(wide, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantised(wide: Any, kind: Any) -> Any:
    """fp32 [rows, width] -> bytes [rows, bytes a row]."""
    rows, width = wide.shape
    block, size = gguf.GGML_QUANT_SIZES[kind]
    out = np.empty((rows, width // block * size), np.uint8)
    wide = np.ascontiguousarray(wide)
    written = _chunk(kind.value, wide.ctypes.data, out.ctypes.data, 0, rows, width, None)
    if written != out.nbytes:
        raise SystemExit(f"{written} bytes written, {out.nbytes} expected")
    return out


if __name__ == "__main__":
    main(*sys.argv[1:4])
