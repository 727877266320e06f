"""What the sections of the benchmark share: the model, the text, the engines and the peers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from engine.text.load import load_text
from loadtest.bench.llm.own import OwnEngines
from loadtest.bench.llm.target import OverHttp
from loadtest.bench.llm.workload import Workload
from loadtest.bench.peers.process import ServerFailed, ServerProcess, peer_server
from loadtest.bench.peers.settings import SETTINGS, Setting, missing
from loadtest.bench.prose import prose
from voice_agent.models import ModelStore

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, checked. rounds 0: each section's own number."""

    model: str
    rounds: int = 0
    concurrency: tuple[int, ...] = (1, 4, 8, 16, 32)
    peers: bool = True
    all_peers: bool = False
    quick: bool = False
    seed: int = 1
    kv_bytes: int = 1536 << 20


@dataclass(slots=True)
class Bench:
    """Owns the engines and the peers' servers; close it with `close`."""

    options: Options
    tokens: tuple[int, ...]
    own: OwnEngines
    not_run: list[str] = field(default_factory=list)
    """What was left out and why; printed at the end and kept in the JSON."""
    _servers: dict[str, ServerProcess] = field(default_factory=dict)

    @classmethod
    def open(cls, options: Options) -> Bench:
        path = ModelStore().path(options.model)
        tokenizer, _ = load_text(path)
        return cls(options, prose(tokenizer), OwnEngines(path, options.kv_bytes))

    def close(self) -> None:
        for server in self._servers.values():
            server.close()
        self._servers.clear()

    def workload(self, salt: int = 0) -> Workload:
        """The same for every target: seeded by the run's seed and the place in it."""
        return Workload(self.tokens, self.options.seed * 1_000_003 + salt)

    def rounds(self, usual: int) -> int:
        return self.options.rounds or (1 if self.options.quick else usual)

    def skip(self, what: str, why: str) -> None:
        line = f"NOT RUN: {what}: {why}"
        if line not in self.not_run:
            self.not_run.append(line)
            print(line, flush=True)

    def settings(self) -> list[Setting]:
        """Peers that can run here and were asked for."""
        found = []
        for setting in SETTINGS:
            if not self.options.peers or (setting.slow and not self.options.all_peers):
                continue
            reason = missing(setting, self.options.model)
            if reason is None:
                found.append(setting)
            else:
                self.skip(setting.name, reason)
        return found

    def start_peers(self, settings: Sequence[Setting]) -> list[Setting]:
        """Start what is not running yet, one after the other, and freeze it; who is there."""
        there = []
        for setting in settings:
            if setting.name not in self._servers:
                server = peer_server(setting, self.options.model, threads=2, slots=32, context=1024)
                self._servers[setting.name] = server
                try:
                    server.wait_ready()
                    target = OverHttp(setting.name, server.port)
                    asyncio.run(_once(target, self.workload(99)))
                except (ServerFailed, OSError) as error:
                    self._servers.pop(setting.name).close()
                    self.skip(setting.name, str(error))
                    continue
                server.freeze()
            there.append(setting)
        return there

    @contextlib.contextmanager
    def awake(self, setting: Setting) -> Iterator[OverHttp]:
        """The peer runs inside; outside it costs nothing."""
        server = self._servers[setting.name]
        server.thaw()
        try:
            yield OverHttp(setting.name, server.port)
        finally:
            server.freeze()


async def _once(target: OverHttp, workload: Workload) -> None:
    reply = await target.answer(workload.fixed(1)[0])
    if reply.error:
        raise ServerFailed(f"{target.name}: {reply.error}")


def run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    return asyncio.run(work())
