"""The core's Python at 74 calls without models: `make bench-gil` (`python -m loadtest.bench gil`).

Real calls, turns, contexts, engine loop and scheduler, voice service, voice activity detection,
events for the page, and a media worker process with its link. Recognition, end-of-turn model, steps
of the engine and the voice only take time (an H200's by the roofline), no processor. What each
thread of the core used is read from its own clock, as a share of one core, beside the budget:
media ticks, the engine's thread, and all else on the event loop: turns and delivery.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import json
import pstats
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from engine.client import Engine
from engine.config import EngineConfig
from gateway.config import GatewayConfig
from gateway.gateway import Gateway
from gateway.page_events import page_event
from gateway.workers.link import Message
from gateway.workers.worker import FarLine, Worker
from loadtest.bench.capacity.engine import Scripted
from loadtest.bench.capacity.times import Machine, gpu
from loadtest.bench.capacity.words import EOS, N_VOCAB, Words
from loadtest.bench.capacity.world import INSTRUCTIONS, answers
from loadtest.bench.llm.measure import ms, tail
from loadtest.report import hardware, write_json
from voice_agent.agent_file import AgentFile
from voice_agent.cli.runtime import settle
from voice_agent.clock import MonotonicClock
from voice_agent.events import EndReason, Event, ReplyDone, TurnTraced
from voice_agent.library.agent import GivenAgents
from voice_agent.stack import Stack
from voice_agent.tts.service import VoiceService
from voice_agent.vad import VadService

from .fakes import SleepingRecognizer, SleepingRunner, SleepingSmartTurn, SleepingVoice
from .legs import KIND

CLIPS = Path(__file__).parents[3] / "tests" / "data" / "clips"
BUDGET = {"media ticks": 0.15, "engine": 0.40, "turns and delivery": 0.15}
"""Of one core, at 74 calls."""
LAG_MS = 10.0
PROBE_S = 0.005
RAMP_S = 4.0
SAMPLED = 5


class BenchWorker(Worker):
    """A media worker of `legs`. media_s: what its bundles took of this thread."""

    def __init__(self, name: str, settings: Message) -> None:
        super().__init__(name, settings, lambda line, message: None)
        self.media_s = 0.0
        link = self.link
        link.data_received = self._timed(link.data_received)  # type: ignore[method-assign]
        link.flush = self._timed(link.flush)  # type: ignore[method-assign]

    def _timed(self, work: Callable[..., None]) -> Callable[..., None]:
        """One in `SAMPLED` is timed and counts for all: reading the thread's clock costs too."""
        turns = itertools.count()

        def timed(*arguments: Any) -> None:
            if next(turns) % SAMPLED:
                work(*arguments)
                return
            began = time.thread_time()
            work(*arguments)
            self.media_s += SAMPLED * (time.thread_time() - began)

        return timed

    async def start(self) -> None:
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "loadtest.bench.gil.legs", str(theirs.fileno())]
        with theirs:
            self._process = await asyncio.to_thread(
                subprocess.Popen, command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        loop = asyncio.get_running_loop()
        await loop.create_unix_connection(lambda: self.link, sock=ours)
        self.link.tell(0, "start", **self._settings)


class Core:
    """The server's process without models, and its callers in a worker."""

    def __init__(self, machine: Machine, calls: int, clips: Path, seed: int) -> None:
        clock = MonotonicClock()
        words = Words()
        config = EngineConfig(Path("none"), **machine.engine_options)
        runner = SleepingRunner(machine.engine, config, machine.n_blocks, machine.max_model_len)
        self.engine = Engine(
            config, runner, tokenizer=words, chat=words,  # type: ignore[arg-type]
            make_text=words.text_of, eos_ids=frozenset({EOS}), n_vocab=N_VOCAB, clock=clock,
        )  # fmt: skip
        self.engine.warm(machine.engine)
        texts = [words.encode(text) for text in answers()]
        rng = random.Random(seed)
        thinker = Scripted(self.engine, lambda call, asked: rng.choice(texts), runner)
        self.vad = VadService(clock)
        self.vad.warm()
        self.voices = VoiceService(SleepingVoice(machine.voice), clock)
        file = AgentFile(name="bench", instructions=INSTRUCTIONS)
        self.stack = Stack(
            clock=clock,
            vad=self.vad,
            smart_turn=SleepingSmartTurn(machine.smart_turn_ms),  # type: ignore[arg-type]
            recognizer=SleepingRecognizer(machine.stt),
            thinker=thinker,
            chat=words,
            tokenizer=words,
            speakers={"bench": self.voices},
            default_voice="bench",
            shelf=GivenAgents({"bench": file}),
            names=["bench"],
            max_context=machine.max_model_len,
            target_s=machine.target_s,
            answer_within_s=machine.answer_within_s,
            engine=self.engine,
            voices=self.voices,
        )
        self.gateway = Gateway(self.stack, GatewayConfig(media_workers=0))
        self.worker = BenchWorker("bench", {"kind": KIND, "clips": str(clips), "seed": seed})
        self.waits: list[float] = []
        self.replies = self.events = 0
        self._calls = calls

    async def run(self, seconds: float, probe: Probe) -> None:
        await self.stack.start()
        await self.worker.start()
        await self.worker.ready.wait()
        calls = [asyncio.create_task(self._call(n)) for n in range(self._calls)]
        await asyncio.sleep(2 * RAMP_S)
        settle()
        self.waits.clear()
        await probe.run(seconds)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await self.worker.end()
        self.engine.close()
        await self.stack.close()
        self.vad.close()

    async def _call(self, n: int) -> None:
        await asyncio.sleep(n * RAMP_S / self._calls)
        line = self.worker.line(lambda message: None)
        await line.open({"echo": "off"})
        call = self.stack.open_call(None, lambda event: self._told(line, event), 0)
        line.talk(call, self.gateway.count_frame, lambda: None)
        try:
            await call.run()
        finally:
            call.hang_up(EndReason.CALLER_HUNG_UP)

    def _told(self, line: FarLine, event: Event) -> None:
        self.events += 1
        self.gateway.observe(event)
        if (data := page_event(event)) is not None:
            line.tell("text", text=json.dumps(data, ensure_ascii=False, separators=(",", ":")))
        if isinstance(event, ReplyDone):
            self.replies += 1
        if isinstance(event, TurnTraced) and (wait := event.trace.voice_to_voice_ms) is not None:
            self.waits.append(wait)


class Probe:
    """What each thread of this process used while it ran, and how late the event loop was."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.late_ms: list[float] = []
        self.used: dict[str, float] = {}
        self.wall_s = 0.0
        self.profile: cProfile.Profile | None = None

    async def run(self, seconds: float) -> None:
        before, media = _clocks(), self._core.worker.media_s
        began = time.perf_counter()
        if self.profile is not None:
            self.profile.enable()
        while (now := time.perf_counter()) - began < seconds:
            await asyncio.sleep(PROBE_S)
            self.late_ms.append((time.perf_counter() - now - PROBE_S) * 1000)
        if self.profile is not None:
            self.profile.disable()
        self.wall_s = time.perf_counter() - began
        after = _clocks()
        threads = {name: after[name] - before.get(name, 0.0) for name in after}
        loop = threads.pop("MainThread")
        media = self._core.worker.media_s - media
        self.used = {"media ticks": media, "turns and delivery": loop - media, **threads}
        self.used = {name: s / self.wall_s for name, s in self.used.items()}


def _clocks() -> dict[str, float]:
    """Processor seconds of every Python thread, by name without its number."""
    out: dict[str, float] = {}
    for thread in threading.enumerate():
        if thread.ident is not None:
            name = thread.name.rsplit("_", 1)[0]
            used = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            out[name] = out.get(name, 0.0) + used
    return out


def measure(a: argparse.Namespace) -> dict[str, Any]:
    core = Core(gpu(0.0), a.calls, a.clips, a.seed)
    probe = Probe(core)
    probe.profile = cProfile.Profile() if a.profile else None
    settle()
    with asyncio.Runner(loop_factory=_new_loop) as runner:
        runner.run(core.run(a.seconds, probe))
    if probe.profile is not None:
        pstats.Stats(probe.profile).sort_stats("tottime").print_stats(40)
    stats = core.engine.stats()
    shares = probe.used
    media_ms = (shares["media ticks"] + shares["turns and delivery"]) * 20.0 / a.calls
    return {
        "hardware": hardware(),
        "calls": a.calls,
        "seconds": a.seconds,
        "share_of_a_core": shares,
        "budget": {name: share * a.calls / 74 for name, share in BUDGET.items()},
        "core_ms_per_20_ms_of_a_call": media_ms,
        "loop_late_ms": tail(probe.late_ms),
        "goal_late_ms_p99": LAG_MS,
        "replies": core.replies,
        "events": core.events,
        "voice_to_voice_ms": tail(core.waits),
        "steps": stats.steps_total,
        "tokens": stats.tokens_total,
        "vad_windows": core.vad.windows,
    }


def _new_loop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


def show(body: dict[str, Any]) -> None:
    print(f"{body['hardware']}; {body['calls']} calls, {body['seconds']:.0f} s, fake models")
    budget = body["budget"]
    for name, share in sorted(body["share_of_a_core"].items(), key=lambda kv: -kv[1]):
        told = f"of {100 * budget[name]:5.1f} %" if name in budget else ""
        over = "  OVER" if name in budget and share > budget[name] else ""
        print(f"  {name:24}{100 * share:7.1f} % of a core {told}{over}")
    late = body["loop_late_ms"]
    print(
        f"  event loop late p50/p99/max {ms(late, 'p50')}/{ms(late, 'p99')}/{ms(late, 'max')} ms "
        f"(goal: p99 under {body['goal_late_ms_p99']:.0f}); event loop for 20 ms of a call "
        f"{body['core_ms_per_20_ms_of_a_call']:.3f} ms"
    )
    wait = body["voice_to_voice_ms"]
    print(
        f"  {body['replies']} replies, {body['steps']} steps, {body['tokens']} tokens, "
        f"{body['vad_windows']} windows; voice to voice p50/p95 {ms(wait, 'p50')}/"
        f"{ms(wait, 'p95')} ms"
    )


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(
        prog="python -m loadtest.bench gil",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    p.add_argument("--calls", type=int, default=74)
    p.add_argument("--seconds", type=float, default=30.0)
    p.add_argument("--profile", action="store_true", help="what the event loop's thread does")
    p.add_argument("--clips", type=Path, default=CLIPS)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--json", type=Path)
    a = p.parse_args(argv)
    body = measure(a)
    show(body)
    write_json(a.json, body)
    return 0
