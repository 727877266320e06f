"""Makes the recorded calls in tests/data/calls anew: real models, recorded people, real time.

    python -m tests.support.record_calls [NAME ...]

`clean`: a question, its answer, a second one. `barge_in`: the caller cuts into a story. `echo`: our
own voice comes back 120 ms later at -9 dB, and the canceller leaves what it leaves of it.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from gateway.media.echo import Canceller
from voice_agent.audio import resample
from voice_agent.config import load_config
from voice_agent.events import EndReason
from voice_agent.loading import load_stack
from voice_agent.replay.compare import rows
from voice_agent.replay.play import replay
from voice_agent.replay.record import TapedCall, taped
from voice_agent.replay.tape import SUFFIX, Recorded, save, thinned
from voice_agent.stack import Stack
from voice_agent.types import FRAME_MS, IN_FRAME, IN_RATE, OUT_RATE, Frame, Pcm16

from .clips import clip

FOLDER = Path(__file__).parents[1] / "data" / "calls"
FLAGS = {
    "models.llm": "smollm2-135m",
    "models.stt": "whisper-tiny.en",
    "models.voice": "piper-joe",
    "models.fetch": False,
}
AGENTS = {
    "brief": """
greeting = "Hello, how can I help?"
instructions = "You are a friendly phone agent. Answer in one short sentence."
[limits]
max_reply_tokens = 24
""",
    "story": """
instructions = "You tell long stories. Never stop before you have told the whole story."
[limits]
max_reply_tokens = 120
""",
}
ECHO_FRAMES, ECHO_DB = 6, -9.0


def quiet(seconds: float) -> Pcm16:
    """A quiet room whose noise compresses well."""
    rng = np.random.default_rng(0)
    return rng.integers(-1, 2, int(IN_RATE * seconds)).astype(np.int16)


def scenes() -> dict[str, tuple[str, Pcm16, bool]]:
    """name -> (agent, the caller's own voice, whether ours comes back)."""
    ask, more = clip("ps_something"), clip("ps_goforward")
    return {
        "clean": ("brief", np.concatenate([quiet(2.2), ask, quiet(7.0), more, quiet(8.0)]), False),
        "barge_in": (
            "story",
            np.concatenate([quiet(0.3), ask, quiet(3.5), more, quiet(8.0)]),
            False,
        ),
        "echo": ("brief", np.concatenate([quiet(4.0), ask, quiet(8.0)]), True),
    }


async def record(stack: Stack, agent: str, pcm: Pcm16, *, echo: bool) -> Recorded:
    """One call at real-time pace, our own voice kept coarse."""
    calls: list[TapedCall] = []
    stack.make_call = taped(calls.append)
    call = stack.open_call(agent, lambda event: None)
    life = asyncio.create_task(call.run())
    loop = asyncio.get_running_loop()
    ours = [np.zeros(IN_FRAME, np.int16)] * ECHO_FRAMES
    canceller = Canceller() if echo else None
    start_s = loop.time()
    for k in range(len(pcm) // IN_FRAME):
        await asyncio.sleep(max(0.0, start_s + (k + 1) * FRAME_MS / 1000 - loop.time()))
        sound = pcm[k * IN_FRAME : (k + 1) * IN_FRAME]
        if canceller is not None:
            back = ours[-ECHO_FRAMES] * 10 ** (ECHO_DB / 20)
            line = np.clip(np.rint(sound + back), -32768, 32767).astype(np.int16)
            sound = canceller.process(ours[-1], line)
        call.hear(Frame(sound))
        ours.append(resample(call.tick().pcm, OUT_RATE, IN_RATE))
    call.hang_up(EndReason.CALLER_HUNG_UP)
    await life
    return thinned(calls[0].recorded())


def _differing(made: Recorded) -> list[str]:
    """How a replay differs from the call as it was."""
    replayed = replay(made)
    found = rows(made.tape.decisions, replayed.decisions)
    return [str(row) for row in found if not row.same] + [f"guessed: {replayed.guessed}"]


async def main(names: Iterable[str]) -> None:
    with tempfile.TemporaryDirectory() as agents:
        for name, text in AGENTS.items():
            (Path(agents) / f"{name}.toml").write_text(text, "utf-8")
        flags = {**FLAGS, "agents_dir": agents, "default_agent": "brief"}
        stack = await load_stack(load_config(None, flags).config)
        await stack.start()
        try:
            for name, (agent, pcm, echo) in scenes().items():
                if name in names:
                    made = await record(stack, agent, pcm, echo=echo)
                    print(name, *await asyncio.to_thread(_differing, made), sep="\n  ")
                    await asyncio.to_thread(save, made, FOLDER / f"{name}{SUFFIX}")
        finally:
            await stack.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or scenes()))
