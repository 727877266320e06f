"""Side by side with a Pipecat agent: same clips, same caller, same models, alternating runs.

    python -m loadtest.versus --peer DIR --peer-python PY --peer-models DIR --clips DIR

`--peer` is a folder with the peer's `run.py`, `client.py` and servers; `--peer-tuned` a copy whose
end-of-turn fallback is 1 s instead of 3 (it is also run with beam 1 and no timestamps);
`--peer-python` an interpreter with its requirements. Ours is started with the same recogniser,
language model and voice, and driven by the peer's own caller over the OpenAI Realtime protocol.
Runs alternate (peer, ours, tuned peer) so that a change of the machine's load meets all of them.
Only ratios of one sitting count.

Fair play: first sound is the first word of the model's own answer; greedy sampling and the same
reply limit; a different nonce in every run's prompt; the prefix cache holds what the peer's
prompt cache holds too (this call's own history and instructions). Reply lengths are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from loadtest.report import hardware, quantile, write_json

SYSTEM = "You are a friendly phone agent. Answer in one short sentence."
CLIPS = [
    "ps_goforward",
    "ps_something",
    "ps_cards_005",
    "ps_austen_0880",
    "ps_austen_0930",
    "ps_austen_0890",
    "ast_tt_weasels",
    "ast_tt_somethingwrong",
    "ast_tt_monkeysintro",
    "ast_privacy_prompt",
    "ast_followme_status",
    "ast_ss_noservice",
    "ast_agent_alreadyon",
]
READY_WITHIN_S = 180


@dataclass(slots=True)
class Side:
    """One system over all of its runs. Milliseconds, seconds of CPU, counts."""

    v2v_ms: list[float] = field(default_factory=list)
    reply_s: list[float] = field(default_factory=list)
    words: list[int] = field(default_factory=list)
    turns: int = 0
    failed: int = 0
    premature: int = 0
    split: int = 0
    gaps: int = 0
    cpu_s: float = 0.0
    call_minutes: float = 0.0
    foreign_cores: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "n": len(self.v2v_ms),
            "v2v_median_ms": round(statistics.median(self.v2v_ms)) if self.v2v_ms else None,
            "v2v_p95_ms": round(quantile(self.v2v_ms, 0.95)) if self.v2v_ms else None,
            "v2v_max_ms": round(max(self.v2v_ms)) if self.v2v_ms else None,
            "failed": self.failed,
            "premature": self.premature,
            "split": self.split,
            "gaps_over_40ms": self.gaps,
            "reply_s_median": round(statistics.median(self.reply_s), 2) if self.reply_s else None,
            "reply_words_mean": round(statistics.mean(self.words), 1) if self.words else None,
            "cpu_s_per_call_minute": round(self.cpu_s / max(self.call_minutes, 1e-9), 1),
            "foreign_cores": [round(x, 2) for x in self.foreign_cores],
        }


def main() -> None:
    a = arguments()
    a.out.mkdir(parents=True, exist_ok=True)
    sides = {name: Side() for name in ("ours", "peer", "peer_tuned")}
    for i in range(a.rounds):
        nonce = secrets.token_hex(4)
        system = f"{SYSTEM} Call {nonce}."
        print(f"round {i + 1} of {a.rounds}", flush=True)
        run_peer(a, f"peer{i}", system, sides["peer"], tuned=False)
        run_ours(a, f"ours{i}", system, sides["ours"])
        if a.peer_tuned:
            run_peer(a, f"tuned{i}", system, sides["peer_tuned"], tuned=True)
    report = {
        "hardware": hardware(),
        "models": {"stt": "whisper-tiny.en", "llm": "smollm2-135m", "voice": "piper joe medium"},
        "sessions": a.sessions,
        "sides": {name: side.summary() for name, side in sides.items() if side.turns},
    }
    write_json(a.out / "versus.json", report)
    show(report)


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    p.add_argument("--peer", type=Path, required=True)
    p.add_argument("--peer-python", required=True)
    p.add_argument("--peer-models", type=Path, required=True)
    p.add_argument("--clips", type=Path, required=True)
    p.add_argument("--out", type=Path, default=Path("out/versus"))
    p.add_argument("--rounds", type=int, default=2)
    p.add_argument("--turns", type=int, default=13)
    p.add_argument("--sessions", type=int, default=1)
    p.add_argument("--max-tokens", type=int, default=40)
    p.add_argument("--port", type=int, default=18080)
    p.add_argument("--peer-tuned", type=Path, help="the tuned copy; without it it is not run")
    p.add_argument("--agent-preset", default="balanced")
    return p.parse_args()


def run_peer(a: argparse.Namespace, name: str, system: str, side: Side, *, tuned: bool) -> None:
    command = [
        a.peer_python, str((a.peer_tuned if tuned else a.peer) / "run.py"), "--name", name,
        "--models", str(a.peer_models),
        "--clips", str(a.clips), "--out", str(a.out), "--sessions", str(a.sessions),
        "--turns", str(a.turns), "--max-tokens", str(a.max_tokens), "--system", system,
    ]  # fmt: skip
    if tuned:
        command += ["--stt-fast"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    body = json.loads((a.out / f"{name}.json").read_text())
    summary = json.loads((a.out / f"{name}.summary.json").read_text())
    for turn in body["turns"]:
        turn["split"] = _count(turn, "user-stopped-speaking") > 1
    add(side, body, sum(v for k, v in summary["cpu_s"].items() if k != "client"), _peer_words)
    side.foreign_cores.append(summary["foreign_cores_during"])


def _count(turn: dict[str, Any], kind: str) -> int:
    return sum(m.get("type") == kind for m in turn.get("texts", []))


def _peer_words(turn: dict[str, Any]) -> int:
    texts = [
        str(m.get("data", {}).get("text", ""))
        for m in turn.get("texts", [])
        if m.get("type") == "bot-llm-text"
    ]
    return len("".join(texts).split())


def _our_words(turn: dict[str, Any]) -> int:
    texts = [
        m.get("transcript", "")
        for m in turn.get("texts", [])
        if m.get("type") == "response.output_audio_transcript.done"
    ]
    return len(" ".join(texts).split())


def add(side: Side, body: dict[str, Any], cpu_s: float, words: Any) -> None:
    """Turn 0 of every session is warm-up, for both."""
    turns = [t for t in body["turns"] if t["i"] != 0]
    good = [t for t in turns if t["ok"] and not t.get("premature")]
    side.turns += len(turns)
    side.failed += sum(not t["ok"] for t in turns)
    side.premature += sum(bool(t.get("premature")) for t in turns)
    side.split += sum(bool(t.get("split")) for t in turns)
    side.v2v_ms += [t["v2v"] * 1000 for t in good]
    side.reply_s += [t["reply_s"] for t in good]
    side.words += [n for n in map(words, good) if n]
    side.gaps += sum(g > 0.04 for t in good for g, _ in t["gaps"])
    side.cpu_s += cpu_s
    side.call_minutes += body["call_minutes"]


def run_ours(a: argparse.Namespace, name: str, system: str, side: Side) -> None:
    with our_server(a, name, system) as server:
        out = a.out / f"{name}.json"
        clips = [str(a.clips / f"{c}.wav") for c in CLIPS]
        before, busy0, wall0 = _cpu_s(server), _busy_s(), time.time()
        client = subprocess.Popen(
            [
                a.peer_python,
                str(a.peer / "client.py"),
                "--proto",
                "realtime",
                "--url",
                f"ws://127.0.0.1:{a.port}/v1/realtime?model=default",
                "--sessions",
                str(a.sessions),
                "--turns",
                str(a.turns),
                "--out",
                str(out),
                *clips,
            ]
        )
        caller, client_s = psutil.Process(client.pid), 0.0
        while client.poll() is None:
            try:
                client_s = sum(caller.cpu_times()[:2])
            except psutil.Error:
                break
            time.sleep(0.25)
        client.wait()
        cpu = _cpu_s(server) - before
        foreign = (_busy_s() - busy0 - cpu - client_s) / (time.time() - wall0)
    body = json.loads(out.read_text())
    for turn in body["turns"]:
        turn["split"] = _count(turn, "input_audio_buffer.committed") > 1
    add(side, body, cpu, _our_words)
    side.foreign_cores.append(foreign)


@contextmanager
def our_server(a: argparse.Namespace, name: str, system: str) -> Iterator[psutil.Process]:
    agents = a.out / f"{name}.agents"
    agents.mkdir(exist_ok=True)
    (agents / "default.toml").write_text(
        f"instructions = {json.dumps(system)}\n[turn_taking]\npreset = {json.dumps(a.agent_preset)}"
        f"\n[limits]\nmax_reply_tokens = {a.max_tokens}\n",
        "utf-8",
    )
    env = os.environ | {
        "VOICE_AGENT__AGENTS_DIR": str(agents),
        "VOICE_AGENT__SERVER__MAX_CALLS": str(max(a.sessions, 1)),
        "VOICE_AGENT__PRIVACY__CONTENT": "true",
        "VOICE_AGENT__HISTORY__ENABLED": "false",  # of the user's own calls
        "VOICE_AGENT__VOICE__CACHE_S": "0",  # the other side has no such cache
    }
    with (a.out / f"{name}.log").open("w") as log:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "voice_agent.cli", "up", "--port", str(a.port), "--llm",
                "smollm2-135m", "--stt", "whisper-tiny.en", "--voice", "piper-joe",
            ],
            stdout=log, stderr=log, env=env,
        )  # fmt: skip
        try:
            _ready(process, f"http://127.0.0.1:{a.port}/readyz")
            time.sleep(2)
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


def _ready(process: subprocess.Popen[bytes], url: str) -> None:
    for _ in range(READY_WITHIN_S * 4):
        if process.poll() is not None:
            raise SystemExit("our server ended while starting; see its log")
        try:
            urllib.request.urlopen(url, timeout=1)
        except OSError:
            time.sleep(0.25)
        else:
            return
    raise SystemExit("our server is not ready")


def _cpu_s(process: psutil.Process) -> float:
    return sum(sum(p.cpu_times()[:2]) for p in [process, *process.children(recursive=True)])


def _busy_s() -> float:
    t = psutil.cpu_times()
    return float(sum(t) - t.idle - t.iowait - getattr(t, "guest", 0.0))


def show(report: dict[str, Any]) -> None:
    print(report["hardware"], report["models"], f"{report['sessions']} call(s)")
    rows = ["v2v_median_ms", "v2v_p95_ms", "v2v_max_ms", "n", "turns", "failed", "premature",
            "split", "gaps_over_40ms", "reply_s_median", "reply_words_mean",
            "cpu_s_per_call_minute", "foreign_cores"]  # fmt: skip
    sides = report["sides"]
    print(f"{'':24}" + "".join(f"{name:>16}" for name in sides))
    for row in rows:
        print(f"{row:24}" + "".join(f"{sides[name][row]!s:>16}" for name in sides))
    ours = sides["ours"]
    for name in ("peer", "peer_tuned"):
        if name in sides and sides[name]["v2v_median_ms"]:
            m = ours["v2v_median_ms"] / sides[name]["v2v_median_ms"]
            p = ours["v2v_p95_ms"] / sides[name]["v2v_p95_ms"]
            print(f"ours / {name}: median {m:.2f}, p95 {p:.2f}")


if __name__ == "__main__":
    main()
