"""Kokoro's PyTorch weights, rebuilt from the int8 ONNX export.

The export keeps biases and embeddings under their module's name; matrices and convolutions were
renamed and quantised, and are found again through the nodes that use them, whose names are module
paths. Values are those of the export: integer minus zero point, times scale.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from voice_agent.errors import InternalError

from .onnx_graph import Node, OnnxGraph

_PREFIXES = (("decoder.decoder.", "decoder."), ("encoder.", ""))


def load_into(model: torch.nn.Module, onnx_file: Path) -> None:
    """Fill a freshly made KokoroModel in place. Raises InternalError when a tensor is missing."""
    state = model.state_dict()
    found = _Collector(OnnxGraph(onnx_file), {k: tuple(v.shape) for k, v in state.items()}).run()
    missing = [k for k in state if k not in found]
    if missing:
        raise InternalError(f"{onnx_file.name} lacks {len(missing)} tensors, first {missing[0]}")
    tensors = {k: torch.from_numpy(np.array(v, np.float32, copy=True)) for k, v in found.items()}
    model.load_state_dict(tensors)


def module_path(node: str) -> str:
    """/encoder/bert/encoder/.../attention_3/query/MatMul -> the PyTorch module it was."""
    scope = node.strip("/").split("/")[:-1]
    if scope and scope[0] == "encoder":
        scope = scope[1:]
        if scope and re.match(r"(F0|N)(\.|_proj)|shared$", scope[0]):
            scope = ["predictor", *scope]
    elif scope and scope[0] == "decoder":
        scope = scope[1:]
    shared_layers = any("albert" in part for part in scope)
    out: list[str] = []
    for part in scope:
        if shared_layers:  # one set of weights used twelve times: calls are numbered
            part = re.sub(r"_\d+$", "", part)
        if out and part.startswith(out[-1] + "."):
            out[-1] = part
        else:
            out.append(part)
    return ".".join(out)


class _Collector:
    """Walks one graph and collects tensors by PyTorch name."""

    def __init__(self, graph: OnnxGraph, shapes: dict[str, tuple[int, ...]]) -> None:
        self._graph = graph
        self._shapes = shapes
        self._names = set(graph.weight_names())
        self._out: dict[str, NDArray[np.float32]] = {}

    def run(self) -> dict[str, NDArray[np.float32]]:
        for name in self._names:
            for prefix, ours in _PREFIXES:
                target = ours + name[len(prefix) :]
                if name.startswith(prefix) and target in self._shapes:
                    self._out[target] = self._floats(name).reshape(self._shapes[target])
        for node in self._graph.nodes:
            if node.name.startswith("/"):
                self._visit(node, module_path(node.name))
        return self._out

    def _floats(self, name: str) -> NDArray[np.float32]:
        return self._graph.weight(name).astype(np.float32)

    def _visit(self, node: Node, module: str) -> None:
        inputs = node.inputs
        if node.op in ("ConvInteger", "MatMulInteger") and inputs[1] in self._names:
            by_column = node.op == "MatMulInteger"
            scale = inputs[1].replace("_quantized", "_scale")
            weight = self._dequantised(inputs[1], scale, inputs[3], columns=by_column)
            self._set(module, weight.T if by_column else weight)
        elif node.op == "DequantizeLinear" and inputs[1] in self._names:
            quantised = inputs[1].replace("_scale", "_quantized")
            self._set(module, self._dequantised(quantised, inputs[1], inputs[2]))
        elif node.op in ("Conv", "ConvTranspose") and inputs[1] in self._names:
            if "istft" not in node.name:
                self._set(module, self._floats(inputs[1]))
        elif node.op == "MatMul" and inputs[1] in self._names:
            self._set(module, self._floats(inputs[1]).T)
        elif node.op == "DynamicQuantizeLSTM":
            self._set_lstm(module, inputs)

    def _dequantised(
        self, values: str, scale: str, zero: str, *, columns: bool = False
    ) -> NDArray[np.float32]:
        v, s, z = self._floats(values), self._floats(scale), self._floats(zero)
        if not columns and s.size > 1:
            s = s.reshape(-1, *[1] * (v.ndim - 1))
            z = z.reshape(s.shape) if z.size > 1 else z
        out: NDArray[np.float32] = (v - z) * s
        return out

    def _set(self, module: str, weight: NDArray[np.float32]) -> None:
        if f"{module}.weight" in self._shapes:
            self._check(f"{module}.weight", weight)

    def _set_lstm(self, module: str, inputs: tuple[str, ...]) -> None:
        """Both directions. ONNX orders gates input, output, forget, cell; PyTorch i, f, g, o."""
        w, r, bias = self._floats(inputs[1]), self._floats(inputs[2]), self._floats(inputs[3])
        w_scale, w_zero = self._floats(inputs[8]), self._floats(inputs[9])
        r_scale, r_zero = self._floats(inputs[10]), self._floats(inputs[11])
        for d, suffix in enumerate(("", "_reverse")):
            both = bias[d].reshape(2, -1)
            parts = {
                "weight_ih": ((w[d] - w_zero[d]) * w_scale[d]).T,
                "weight_hh": ((r[d] - r_zero[d]) * r_scale[d]).T,
                "bias_ih": both[0],
                "bias_hh": both[1],
            }
            for name, value in parts.items():
                i, o, f, c = np.split(value, 4)
                self._check(f"{module}.{name}_l0{suffix}", np.concatenate([i, f, c, o]))

    def _check(self, name: str, value: NDArray[np.float32]) -> None:
        if self._shapes.get(name) != value.shape:
            raise InternalError(f"{name}: shape {value.shape}, not {self._shapes.get(name)}")
        self._out[name] = value
