"""A model whose every token depends on the whole visible prefix, and a loop without a thread."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from engine.budget import CostModel
from engine.config import EngineConfig
from engine.inputs import Row, Sampled
from engine.kvcache import KvCache
from engine.launch import AtOnce
from engine.loop import EngineLoop
from engine.request import FinishReason, Output, Request
from engine.sampling import SamplingParams
from engine.scheduler import Scheduler
from engine.speculate.proposer import Proposer
from engine.speculate.speculation import Speculation
from engine.static import StaticScheduler
from tests.engine.late import Late

MOD = (1 << 61) - 1
EOS = 0
N_VOCAB = 997


def fold(state: int, kv: int, position: int) -> int:
    return (state * 1_000_003 + kv * (position + 7) + 12_345) % MOD


def kv_of(state: int, token: int, position: int) -> int:
    """What a deep model's keys and values are: a function of the token and all before it."""
    return (state * 31 + token * 7_919 + position * 104_729 + 1) % MOD


class HashRunner(AtOnce):
    """Reads every earlier row through the block table, as attention does.

    A wrong block, a row that another request overwrote, a missing copy or a stale prefix changes
    the state and therefore all later tokens. Rows never written hold poison.
    """

    def __init__(
        self,
        n_blocks: int,
        block_size: int = 4,
        max_model_len: int = 400,
        eos_every: int = 0,
    ) -> None:
        self.n_blocks = n_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.eos_every = eos_every
        self.cache = [[-1 - i * block_size - j for j in range(block_size)] for i in range(n_blocks)]
        self.batches: list[list[Row]] = []
        self.fail_next: Exception | None = None
        self.keep_batches = True

    def run(self, rows: Sequence[Row]) -> list[Sampled | None]:
        assert rows
        if self.keep_batches:
            self.batches.append(list(rows))
        if self.fail_next is not None:
            error, self.fail_next = self.fail_next, None
            raise error
        owners: dict[tuple[int, int], int] = {}
        for i, row in enumerate(rows):  # nobody writes where somebody else writes or reads
            for position in range(row.start, row.start + len(row.token_ids)):
                at = (row.blocks[position // self.block_size], position % self.block_size)
                assert at not in owners, "two rows write the same place"
                owners[at] = i
        return [self._row(row) for row in rows]

    def _row(self, row: Row) -> Sampled | None:
        assert row.token_ids
        state = 0
        for position in range(row.start):
            block, offset = divmod(position, self.block_size)
            state = fold(state, self.cache[row.blocks[block]][offset], position)
        chosen = []
        for position, token in enumerate(row.token_ids, row.start):
            block, offset = divmod(position, self.block_size)
            value = kv_of(state, token, position)
            self.cache[row.blocks[block]][offset] = value
            state = fold(state, value, position)
            chosen.append(next_token(state, self.eos_every))
        if row.sample is None:
            return None
        assert row.sample.position == row.start + len(row.token_ids) - row.n_proposed
        token, *beyond = chosen[len(chosen) - 1 - row.n_proposed :]
        return Sampled(token, -1.0, beyond=tuple(beyond))

    def copy_block(self, src: int, dst: int, n_rows: int) -> None:
        assert src != dst
        self.cache[dst][:n_rows] = self.cache[src][:n_rows]


def next_token(state: int, eos_every: int) -> int:
    if eos_every and state % eos_every == 0:
        return EOS
    return 1 + (state >> 7) % (N_VOCAB - 1)


def expected(prompt: Iterable[int], max_new: int, eos_every: int = 0) -> list[int]:
    """The reference: the same function with no cache at all."""
    tokens, state = list(prompt), 0
    for position, token in enumerate(tokens):
        state = fold(state, kv_of(state, token, position), position)
    out: list[int] = []
    while len(out) < max_new:
        token = next_token(state, eos_every)
        if token == EOS:
            break
        out.append(token)
        position = len(tokens)
        tokens.append(token)
        state = fold(state, kv_of(state, token, position), position)
    return out


class PlainText:
    """Each token is `<id>`; stop strings are not looked for."""

    def __init__(self, fail_on: int | None = None) -> None:
        self.stopped = False
        self._fail_on = fail_on

    def push(self, token: int) -> str:
        if token == self._fail_on:
            raise ValueError("undecodable token")
        return f"<{token}>"

    def finish(self) -> str:
        return "."


class ImmediateLoop:
    """Stands where an asyncio loop does; runs what it is given at once and counts."""

    def __init__(self) -> None:
        self.calls = 0

    def call_soon_threadsafe(self, callback, *args) -> None:
        self.calls += 1
        callback(*args)


class Recorder:
    """A sink that keeps what a request delivered."""

    def __init__(self, loop: ImmediateLoop) -> None:
        self.loop = loop
        self.outputs: list[Output] = []

    def accept(self, output: Output) -> None:
        assert self.finish is None, "delivered after the end"
        self.outputs.append(output)

    @property
    def tokens(self) -> list[int]:
        return [t for out in self.outputs for t in out.token_ids]

    @property
    def text(self) -> str:
        return "".join(out.text for out in self.outputs)

    @property
    def finish(self) -> FinishReason | None:
        return self.outputs[-1].finish if self.outputs else None

    @property
    def cached(self) -> int:
        return self.outputs[-1].cached_tokens


class TickClock:
    """Moves only when told to."""

    def __init__(self) -> None:
        self.time_s = 100.0

    def now(self) -> float:
        return self.time_s


class Sim:
    """The real loop, cache and scheduler around a `HashRunner`, stepped by hand."""

    def __init__(
        self,
        n_blocks: int = 64,
        *,
        block_size: int = 4,
        eos_every: int = 0,
        cost: CostModel | None = None,
        fail_on: dict[int, int] | None = None,
        step_s: float = 0.01,
        runner=None,
        proposer: Proposer | None = None,
        overlap: bool = False,
        static_len: int | None = None,
        eos_ids: Iterable[int] = (EOS,),
        **options,
    ) -> None:
        """overlap: steps are read late. static_len: static batching, so long a reservation."""
        options.setdefault("max_num_seqs", 8)
        options.setdefault("min_prefill_tokens", 4)
        self.config = EngineConfig(Path("fake"), block_size=block_size, **options)
        self.runner = runner or HashRunner(n_blocks, block_size, eos_every=eos_every)
        self.clock = TickClock()
        self.step_s = step_s
        self.kv = KvCache(
            n_blocks,
            block_size,
            max_pinned=int(n_blocks * self.config.pin_fraction),
            prefix_cache=self.config.prefix_cache,
        )
        self.speculation = proposer and Speculation(
            proposer,
            tokens=self.config.speculation_tokens,
            max_seqs=self.config.speculation_max_seqs,
            now=self.clock.now,
        )
        cost = cost or CostModel(1.0, 0.1)
        self.scheduler = (
            Scheduler(self.config, self.kv, cost, self.speculation)
            if static_len is None
            else StaticScheduler(self.config, self.kv, cost, static_len)
        )
        self.finished: list[Request] = []
        fail_on = fail_on or {}
        self.late = Late(self.runner, slots=self.config.max_num_seqs) if overlap else None
        self.loop = EngineLoop(
            self.late or self.runner,
            self.kv,
            self.scheduler,
            make_text=lambda request: PlainText(fail_on.get(request.id)),
            eos_ids=frozenset(eos_ids),
            clock=self.clock,
            on_finished=self.finished.append,
        )
        self.wakeups = ImmediateLoop()
        self.n_requests = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        *,
        deadline_in_s: float = 0.6,
        sampling: dict | None = None,
        **kw,
    ) -> tuple[Request, Recorder]:
        self.n_requests += 1
        sink = Recorder(self.wakeups)
        max_new = 0 if kw.get("prefill_only") else max_tokens
        max_new = min(max_new, self.runner.max_model_len - len(prompt))
        request = Request(
            self.n_requests,
            prompt,
            SamplingParams(max_tokens=max_tokens, **(sampling or {})),
            seed=1,
            max_new=max_new,
            arrival_s=self.clock.now(),
            deadline_s=self.clock.now() + deadline_in_s,
            sink=sink,
            **kw,
        )
        self.loop.post_submit(request)
        return request, sink

    def step(self, *, check: bool = True) -> bool:
        ran = self.loop.step(self.clock.now())
        self.clock.time_s += self.step_s
        if check:
            self.loop.check()
        return ran

    def run(self, limit: int = 2000) -> int:
        """Step until nothing is open; returns the number of steps."""
        for n in range(limit):
            self.step()
            if not self.loop.has_work:
                return n + 1
        raise AssertionError(f"still open after {limit} steps: {list(self.scheduler.requests)}")

    def all_free(self) -> bool:
        """Whether nothing is held any more; clears the cache to see it."""
        self.kv.prefix.clear()
        self.loop.check()
        return self.kv.pool.n_free == self.kv.pool.n_total
