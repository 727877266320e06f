"""How many calls meet an objective: doubled until they do not, then halved in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadtest.options import Options
from loadtest.run import Say, run

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a run must keep. Stuck turns, cross-talk, refusals, broken calls are never allowed."""

    p95_ms: float = 1000.0
    glitches_per_min: float = 0.5

    def missed(self, body: Row) -> list[str]:
        """What the run did not keep, in words; empty: it met the objective."""
        out = []
        p95 = body["voice_to_voice_ms"]["p95"]
        if p95 is None:
            out.append("no turn was answered")
        elif p95 > self.p95_ms:
            out.append(f"p95 {p95:.0f} ms over {self.p95_ms:.0f}")
        glitches = body["glitches_per_min"] or 0.0
        if glitches > self.glitches_per_min:
            out.append(f"{glitches:.2f} glitches a minute over {self.glitches_per_min:g}")
        for name in ("stuck", "refused", "cross_talk"):
            if body[name]:
                out.append(f"{name.replace('_', '-')} {body[name]}")
        broken = len(body["failed"]) + len(body["lost"])
        return [*out, f"{broken} calls broke"] if broken else out


async def search(meets: Callable[[int], Awaitable[bool]], most: int) -> int:
    """The largest number of calls up to `most` that meets it, if more calls are never easier; 0 if
    one call does not."""
    good, bad = 0, most + 1
    n = 1
    while n < bad:
        if await meets(n):
            good, n = n, min(2 * n, most) if n < most else bad
        else:
            bad = n
    while bad - good > 1:
        n = (good + bad) // 2
        if await meets(n):
            good = n
        else:
            bad = n
    return good


async def sweep(
    options: Options, objective: Objective, most: int, say: Say = lambda text: None
) -> dict[str, Any]:
    """One run for each number of calls that is tried; the report has all of them."""
    tried: dict[int, dict[str, Any]] = {}

    async def meets(calls: int) -> bool:
        say(f"{calls} calls")
        body = await run(replace(options, calls=calls), say)
        missed = objective.missed(body)
        tried[calls] = {"missed": missed, "report": body}
        v = body["voice_to_voice_ms"]
        say(f"{calls} calls: p50 {v['p50']}, p95 {v['p95']} ms, {'; '.join(missed) or 'met'}")
        return not missed

    best = await search(meets, most)
    return {
        "objective": asdict(objective),
        "most": most,
        "calls": best,
        "limited_by": tried[best + 1]["missed"] if best + 1 in tried else [],
        "tried": {str(n): tried[n] for n in sorted(tried)},
    }


def table(body: Row) -> list[str]:
    goal = body["objective"]
    lines = [
        f"objective: p95 {goal['p95_ms']:.0f} ms, {goal['glitches_per_min']:g} glitches a minute",
        f"{'calls':>6}{'p50':>8}{'p95':>8}{'p99':>8}{'glitches/min':>14}{'CPU s/min':>11}  missed",
    ]
    for n, step in body["tried"].items():
        r = step["report"]
        v = r["voice_to_voice_ms"]
        cells = "".join(f"{v[p]:>8.0f}" if v[p] is not None else f"{'-':>8}" for p in
                        ("p50", "p95", "p99"))  # fmt: skip
        cpu = r["cpu_s_per_call_min"]
        lines.append(
            f"{n:>6}{cells}{r['glitches_per_min'] or 0.0:>14.2f}"
            f"{'-' if cpu is None else f'{cpu:.1f}':>11}  {'; '.join(step['missed'])}"
        )
    lines.append(f"calls that meet it: {body['calls']}" + (" (the most that were asked for)" if
                 body["calls"] == body["most"] else ""))  # fmt: skip
    return lines
