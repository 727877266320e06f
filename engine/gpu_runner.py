"""Runs steps on a GPU: launched without waiting, decode as graphs, tokens kept on the device.

    launch   block tables and ids to the device (one copy) -> ids that are PENDING from the table
             of chosen tokens -> the layers -> logits -> a choice per row -> into the table
    read     wait for the choices, and make on the host those that a GPU does not

Everything works on a CPU too, with the references of the kernels, where each launch is done when
it returns: that is what the tests run.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.config import KvPrecision
from engine.device import DECODE, PREFILL, Device, cache_bytes, open_device
from engine.errors import CapacityError, UsageError
from engine.gpu_choice import DeviceChoice
from engine.gpu_step import GpuStep, Pick, picks_of
from engine.graphs import DecodeGraphs, resolve_pending
from engine.inputs import Row, Sampled, SampleRow
from engine.models.gpu import DeviceKv, GpuLlama
from engine.models.gpu_linear import GpuQuant
from engine.sampling import SamplingParams
from engine.step_inputs import Fields, Limits, StepInputs
from kernels.resolve import chosen, resolve

log = logging.getLogger(__name__)

BLOCK_SIZES = (16, 32)
_IN_FLIGHT = 2
"""Steps launched and not read, at most."""
_WARM_TOKENS = (2, 16, 17, 32, 33, 64, 65, 96, 128, 129, 192, 256, 384, 512, 768, 1024, 1536,
                2048, 3072, 4096)  # fmt: skip
"""Lengths of prompt chunks that are computed once before anybody waits."""
_WARM_SETTINGS = (
    SamplingParams(),
    SamplingParams(temperature=1.0, top_p=0.9),
    SamplingParams(repetition_penalty=1.1, logit_bias=((0, 1.0),)),
)


class GpuRunner:
    """Owns the weights, the KV storage and the device's memory of a step. One user at a time.

    Storage: [layers, 2, n_blocks + 1, kv_heads, block_size, head_dim] in the model's dtype, or in
    int8 with scales. The last block is the dummy: block tables are padded with it and nobody reads
    it.
    """

    overlaps = True

    def __init__(
        self,
        model: GpuLlama,
        n_blocks: int,
        block_size: int = 16,
        *,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        device: Device | None = None,
        kv_int8: bool = False,
    ) -> None:
        """device: the model's own unless given. kv_int8: keys and values in 8 bits. Raises
        UsageError for impossible sizes."""
        if block_size not in BLOCK_SIZES:
            raise UsageError(f"block_size must be 16 or 32 on a GPU; it is {block_size}")
        if n_blocks < 2:
            raise UsageError(f"the KV cache has room for {n_blocks} blocks; 2 or more are needed")
        c = model.config
        self.model = model
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.max_model_len = model.max_len
        self.vocab_size = c.vocab_size
        self._device = device or open_device(model.device.type)
        self._cache = DeviceKv.zeros(model, n_blocks + 1, block_size, int8=kv_int8)
        self._tokens = torch.zeros(max_num_seqs + 1, dtype=torch.int64, device=model.device)
        self._decode = self._make_inputs(max_num_seqs, max_num_seqs)
        most = max(max_num_batched_tokens, max_num_seqs)
        self._mixed = self._make_inputs(most, max_num_seqs)
        self._choice = DeviceChoice(self._device, max_num_seqs, c.vocab_size)
        self._graphs = DecodeGraphs(
            self._device, model, self._cache, self._decode, self._tokens, self._choice
        )
        self._attention = resolve("paged_attention_prefill", self._device.name)
        self._copy = resolve("kv_copy", self._device.name)
        self._copies: list[tuple[int, int, int]] = []
        self._free = [self._device.staging(8 * most).view(torch.int64) for _ in range(_IN_FLIGHT)]

    @classmethod
    def load(
        cls,
        model_path: Path,
        *,
        device: str = "cuda",
        n_blocks: int | None = None,
        kv_bytes: int | None = None,
        gpu_memory_utilization: float = 0.0,
        block_size: int = 16,
        quant: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int = 16,
        max_num_batched_tokens: int = 512,
        graphs: bool = True,
        kv_cache: KvPrecision = "auto",
    ) -> GpuRunner:
        """Reads a GGUF file or safetensors folder, allocates the cache, warms up; blocking.

        n_blocks, kv_bytes or the share of the device's memory that this process may fill sizes the
        cache. quant "auto": bf16, or fp16 where the GPU has none. kv_cache "int8": keys and values
        in 8 bits; "auto" is "full". Raises ModelError for an unusable model, UsageError and
        CapacityError for what can't be here.
        """
        if n_blocks is None and kv_bytes is None and not gpu_memory_utilization:
            raise UsageError("n_blocks, kv_bytes or gpu_memory_utilization must be given")
        opened = open_device(device)
        dtype, kind = _formats(quant, device)
        kv_int8 = kv_cache == "int8"
        try:
            model = GpuLlama.load(
                model_path,
                device=device,
                dtype=dtype,
                quant=kind,
                max_len=max_model_len,
                balanced=kv_int8,
            )
            if n_blocks is None:
                if kv_bytes is None:
                    working = working_bytes(model, max_num_batched_tokens, max_num_seqs)
                    kv_bytes = cache_bytes(opened, gpu_memory_utilization, working)
                n_blocks = kv_bytes // block_bytes(model, block_size, int8=kv_int8) - 1
            runner = cls(
                model,
                n_blocks,
                block_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                device=opened,
                kv_int8=kv_int8,
            )
            runner.prepare(graphs=graphs)
        except torch.OutOfMemoryError as error:
            raise CapacityError(
                "the GPU's memory does not hold this model, its cache and a step: take a smaller "
                f"model, a smaller share or kv_bytes, or quant = w4 ({error})"
            ) from None
        return runner

    @property
    def kv_bytes_per_block(self) -> int:
        """Bytes of one block over all layers."""
        return block_bytes(self.model, self.block_size, int8=self._cache.scales is not None)

    @property
    def decode_sizes(self) -> tuple[int, ...]:
        """Batch sizes that decode steps are padded to, ascending."""
        return self._graphs.sizes

    def prepare(self, *, graphs: bool = True) -> None:
        """Record the graphs and run everything once, so that nothing is compiled later, and no
        memory asked of the driver. Writes to the cache: call it before anybody uses that."""
        self._device.watch(False)
        self.run([self._warm_row(1, _WARM_SETTINGS[0])])
        if graphs and self._recordable():
            self._graphs.capture()
        most = self._mixed.limits.n_tokens
        longest = min(most, self.n_blocks * self.block_size, self.max_model_len)
        for n in (longest, *(n for n in _WARM_TOKENS if n < longest)):
            self.run([self._warm_row(n, _WARM_SETTINGS[0])])
        for params in _WARM_SETTINGS:
            for n in (1, 2):  # a decode step, a mixed one
                self.run([self._warm_row(n, params)])
        self.copy_block(0, 1, 1)
        with self._device.work(PREFILL):
            self._flush_copies()
            self._choice.prepare(self._graphs.logits)
        self._device.watch(True)

    def _recordable(self) -> bool:
        """Whether no operation fell back to its reference, where a graph could not hold it."""
        name = self._device.name
        plain = [op for (op, device), how in chosen().items()
                 if device == name and how == "reference"]  # fmt: skip
        if plain and not self._device.records_references:
            log.warning("no graphs: %s run on plain PyTorch", ", ".join(sorted(plain)))
            return False
        return True

    def _warm_row(self, n: int, params: SamplingParams) -> Row:
        blocks = tuple(range(-(-n // self.block_size)))
        return Row((0,) * n, 0, blocks, SampleRow(params, n, 0, (0,) * n, n))

    def launch(self, rows: Sequence[Row]) -> GpuStep:
        """Start a step over at least one row; see engine/launch.py. Choices that are told with
        probabilities are made by `read`, all others here on the device."""
        uniform = self._uniform(rows)
        picks = picks_of(rows, every_row=uniform)
        with self._device.work(DECODE if uniform else PREFILL):
            logits, chosen, inputs = self._compute(rows, picks, uniform)
            ours = [pick.at for pick in picks if pick.on_host]
            host_logits = None
            if ours:
                host_logits = logits.index_select(0, self._device.send(np.array(ours, np.int64)))
            if _draws(picks):
                n = len(chosen)
                chosen = self._choice.draw(logits, picks, inputs.settings(n))
                self._tokens.index_copy_(0, inputs.lanes[:n], chosen)
            buffer = self._chosen_on_host(len(chosen))
            tokens = buffer[: len(chosen)]
            tokens.copy_(chosen, non_blocking=True)
            done = self._device.mark()
        give_back = partial(self._free.append, buffer)
        return GpuStep(rows, picks, tokens, host_logits, done, give_back)

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        """Computes every row and chooses a token for those that sample, in the rows' order."""
        return self.launch(rows).read()

    def logits(self, rows: Sequence[Row]) -> Tensor:
        """Computes every row, whose tokens are known; the logits after each row's last token, fp32
        [n_rows, vocab]."""
        uniform = self._uniform(rows)
        greedy = SampleRow(SamplingParams(), 0, 0)
        asked = [replace(row, sample=greedy, n_proposed=0, slot=-1) for row in rows]
        with self._device.work(PREFILL):
            logits, _, _ = self._compute(asked, picks_of(asked, every_row=uniform), uniform)
            return logits.to("cpu", torch.float32, copy=True)

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        """Copies the first n_rows positions of block src into block dst, in every layer; before
        the next step."""
        if any(dst in copy[:2] or src == copy[1] for copy in self._copies):
            with self._device.work(PREFILL):  # one after the other
                self._flush_copies()
        self._copies.append((src, dst, n_rows))

    def _uniform(self, rows: Sequence[Row]) -> bool:
        one_each = all(len(row.token_ids) == 1 for row in rows)
        return one_each and len(rows) <= self._decode.limits.n_rows

    def _compute(
        self, rows: Sequence[Row], picks: Sequence[Pick], uniform: bool
    ) -> tuple[Tensor, Tensor, Fields]:
        """A step: logits [places, vocab], greedy choices int64 [places], and what it was given."""
        self._flush_copies()
        return self._run_decode(rows, picks) if uniform else self._run_mixed(rows, picks)

    def _run_decode(
        self, rows: Sequence[Row], picks: Sequence[Pick]
    ) -> tuple[Tensor, Tensor, Fields]:
        n, graphs = len(rows), self._graphs
        size = graphs.size_for(n)
        self._decode.send(rows, picks, size, draws=_draws(picks))
        graphs.run(size)
        return graphs.logits[:n], graphs.chosen[:n], self._decode.fields

    def _run_mixed(
        self, rows: Sequence[Row], picks: Sequence[Pick]
    ) -> tuple[Tensor, Tensor, Fields]:
        """Eagerly: every step has another shape."""
        n_rows, longest = len(rows), max(len(row.token_ids) for row in rows)
        inputs = self._roomy(n_rows, sum(len(row.token_ids) for row in rows))
        n = inputs.send(rows, picks, n_rows, draws=_draws(picks))
        given, model = inputs.fields, self.model
        tables, seen = given.tables[:n_rows], given.seen[:n_rows]
        starts, lanes = given.starts[: n_rows + 1], given.lanes[: len(picks)]

        def attend(q: Tensor, kept: Tensor, scales: Tensor | None) -> Tensor:
            out: Tensor = self._attention(
                q, kept, tables, starts, seen,
                scale=model.scale, window=model.config.window, max_q=longest, scales=scales,
            )  # fmt: skip
            return out

        ids = resolve_pending(given.ids[:n], given.sources[:n], self._tokens)
        hidden = model.hidden(
            ids, given.positions[:n], given.slots[:n], self._cache, attend,
            given.wanted[: len(picks)],
        )  # fmt: skip
        logits = model.head(hidden)
        chosen = self._choice.likeliest(logits) if picks else self._tokens[:0]
        self._tokens.index_copy_(0, lanes, chosen)
        return logits, chosen, given

    # memory

    def _make_inputs(self, n_tokens: int, n_rows: int) -> StepInputs:
        width = min(-(-self.max_model_len // self.block_size), self.n_blocks)
        limits = Limits(
            n_tokens, n_rows, width, self.block_size, self.n_blocks, len(self._tokens) - 1
        )
        return StepInputs(self._device, limits)

    def _roomy(self, n_rows: int, n_tokens: int) -> StepInputs:
        """Inputs for a mixed step; larger ones where padding or guesses made it outgrow them."""
        most = self._mixed.limits
        if not self._mixed.fits(n_rows, n_tokens):
            log.info("room for a step of %d tokens in %d rows", n_tokens, n_rows)
            self._mixed = self._make_inputs(max(n_tokens, most.n_tokens), max(n_rows, most.n_rows))
        return self._mixed

    def _chosen_on_host(self, n: int) -> Tensor:
        """int64 [n or more] for a step's choices, until it is read."""
        while self._free:
            buffer = self._free.pop()
            if len(buffer) >= n:
                return buffer
        return self._device.staging(8 * self._mixed.limits.n_tokens).view(torch.int64)

    def _flush_copies(self) -> None:
        if not self._copies:
            return
        src, dst, n_rows = self._device.send(np.array(self._copies, np.int64).T.copy())
        self._copies.clear()
        self._copy(self._cache.data, src, dst, n_rows, self._cache.scales)


def block_bytes(model: GpuLlama, block_size: int, *, int8: bool = False) -> int:
    """Bytes that one block of the cache takes over all layers."""
    c = model.config
    row = c.head_dim + 4 if int8 else model.dtype.itemsize * c.head_dim
    return 2 * c.layers * c.kv_heads * block_size * row


def working_bytes(model: GpuLlama, max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """Bytes that steps and graphs work in, generously: activations of the largest step twice, the
    logits of every row three times, and what libraries and kernels take for themselves."""
    c = model.config
    widest = (c.heads + 2 * c.kv_heads) * c.head_dim + 4 * c.hidden + 3 * c.intermediate
    activations = model.dtype.itemsize * max_num_batched_tokens * widest
    return 2 * activations + 3 * 4 * max_num_seqs * c.vocab_size + (512 << 20)


def _formats(quant: str, device: str) -> tuple[torch.dtype, GpuQuant]:
    """Of activations, and of weights. UsageError for what only a CPU has."""
    half = torch.bfloat16
    if device == "cuda" and not torch.cuda.is_bf16_supported():
        half = torch.float16
    formats: dict[str, tuple[torch.dtype, GpuQuant]] = {
        "auto": (half, "dense"),
        "bf16": (torch.bfloat16, "dense"),
        "fp16": (torch.float16, "dense"),
        "fp32": (torch.float32, "dense"),
        "w8": (half, "w8"),
        "w4": (half, "w4"),
    }
    if quant not in formats:
        raise UsageError(f"quant = {quant} is not for a GPU: take {', '.join(formats)}")
    return formats[quant]


def _draws(picks: Sequence[Pick]) -> bool:
    """Whether a choice is made on the device that is not simply the largest logit."""
    return any(not pick.plain for pick in picks if not pick.on_host)
