"""The GPU script on the CPU: a whole dry run on a bare machine, and the parts it is made of."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels import tuning
from loadtest.gpu import sweep
from loadtest.gpu.__main__ import PHASES
from loadtest.gpu.bench import Bench, Json, Phase, Report, Skipped, run_phases
from loadtest.gpu.cases import Case, Inputs, Maker
from loadtest.gpu.goals import MISSED, REACHED, UNKNOWN, goals
from loadtest.gpu.kernels import relative

pytestmark = pytest.mark.unit

NOT_THERE = (
    "ctranslate2", "faster_whisper", "gguf", "kokoro", "llguidance", "misaki", "onnxruntime",
    "phonemizer", "pydantic", "silero_vad", "soxr", "spacy",
)  # fmt: skip
"""What a machine with PyTorch, Triton and transformers may lack."""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(torch.device("cpu"), True, tmp_path)
    yield made
    made.tuned.close()


def test_a_dry_run_on_a_bare_machine(tmp_path: Path) -> None:
    script = (
        f"import sys\nsys.modules.update(dict.fromkeys({NOT_THERE!r}))\n"
        "from loadtest.gpu.__main__ import main\n"
        f"sys.exit(main(['--dry-run', '--out', {str(tmp_path)!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("DRY RUN")
    assert [p.name for p in tmp_path.iterdir()] == ["gpu-dry-run.json"]
    body = json.loads((tmp_path / "gpu-dry-run.json").read_text())
    assert body["dry_run"] is True
    assert "goals" not in body
    states = {name: phase["status"] for name, phase in body["phases"].items()}
    assert list(states) == [phase.name for phase in PHASES]
    unwell = {name: state for name, state in states.items() if state != "done"}
    unwell.pop("cuda c++", None)  # where there is no C++ compiler
    assert unwell == {"sweep": "skipped", "kernels tuned": "skipped"}
    assert body["phases"]["numerics"]["wrong"] == []
    assert set(body["implementations"].values()) == {"reference"}
    calls = body["phases"]["engine 8B"]["rows"]
    assert [row["n_failed"] for row in calls] == [0, 0]
    assert all(row["tokens"] > 0 for row in calls)
    assert set(body["phases"]["mixed"]["together"]) == {"voice", "recognition", "engine"}


def test_the_report_is_written_after_every_phase(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "gpu.json"
    report = Report(path, {})
    seen: list[list[str]] = []

    def look(bench: Bench) -> Json:
        seen.append(list(json.loads(path.read_text())["phases"]))
        return {"answer": 42}

    def fail(bench: Bench) -> Json:
        raise RuntimeError("broken")

    def leave_out(bench: Bench) -> Json:
        raise Skipped("no such package")

    phases = [
        Phase("a", 60, look, lambda _: None), Phase("b", 60, fail, lambda _: None),
        Phase("c", 60, leave_out, lambda _: None), Phase("d", 60, look, lambda _: None),
        Phase("late", 1, look, lambda _: None),
    ]  # fmt: skip
    assert not run_phases(phases, bench, report, 100.0)
    assert seen == [[], ["a", "b", "c"]]
    found = json.loads(path.read_text())["phases"]
    assert found["a"]["answer"] == 42
    assert [found[name]["status"] for name in "abcd"] == ["done", "failed", "skipped", "done"]
    assert found["b"]["why"] == "RuntimeError: broken"
    assert found["late"] == {"status": "skipped", "why": "no time left"}


def test_a_phase_knows_its_time(bench: Bench, tmp_path: Path) -> None:
    left: list[float] = []

    def look(bench: Bench) -> Json:
        left.append(bench.left_s())
        return {}

    phases = [Phase(str(i), 40, look, lambda _: None) for i in range(2)]
    run_phases(phases, bench, Report(tmp_path / "x.json", {}), 50.0)
    assert left[0] <= 40 < left[0] + left[1]


def test_a_goal_is_read_off_the_results() -> None:
    assert {goal.state for goal in goals({})} == {UNKNOWN}
    row = {"op": "paged_attention_decode", "shape": "8B 32 x 1024", "percent_of_copy": 75.0}
    calls = {
        "calls": 32, "ttft_ms": {"p99": 90.0}, "cached_ttft_ms": {"p50": 10.0},
        "gap_ms": {"p99": None}, "n_failed": 0,
    }  # fmt: skip
    found = goals({"kernels": {"rows": [row]}, "engine 8B": {"rows": [calls]}})
    assert [goal.state for goal in found[:1]] == [REACHED]
    assert [goal.state for goal in found[2:5]] == [MISSED, REACHED, UNKNOWN]
    better = goals(
        {"kernels": {"rows": [row]}, "kernels tuned": {"rows": [row | {"percent_of_copy": 60.0}]}}
    )
    assert better[0].state == MISSED


def test_the_error_of_a_result_that_is_no_number_is_infinite() -> None:
    truth = torch.ones(4, dtype=torch.float64)
    assert relative(torch.ones(4), truth) == 0.0
    assert relative(torch.tensor([1.0, 1.0, float("nan"), 1.0]), truth) == float("inf")


class Slow:
    """An operation whose time depends on what the table says; best at WIDTH 64, num_warps 8."""

    wrong: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        default = {"WIDTH": 16, "num_warps": 4}
        found = tuning.launch("slow", "all", x.device, default)
        if found["WIDTH"] > 64:
            raise RuntimeError("out of resources")
        time.sleep(0.002 * abs(64 / found["WIDTH"]) + (0.004 if found["num_warps"] != 8 else 0))
        return x * 2 if self.wrong and found["WIDTH"] == 64 else x + 1


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    op = Slow()
    monkeypatch.setattr(sweep, "resolve", lambda name, device: op)
    monkeypatch.setattr(sweep, "targets", lambda dry: [case()])
    return op


def case() -> Case:
    def make(m: Maker) -> Inputs:
        return {"x": m.normal(4)}

    def call(op: Any, x: Inputs) -> Tensor:
        out: Tensor = op(x["x"])
        return out

    return Case("slow", "4", make, call, lambda item: 4 * item)


def test_the_sweep_finds_better_values_and_writes_them(slow: Slow, bench: Bench) -> None:
    bench.until_s = time.monotonic() + 100
    real = tuning.launch
    (bench.out / "cpu.json").write_text('{"other": {"all": {"A": 1}}}')
    found = sweep.sweep(bench)
    assert tuning.launch is real
    assert found["table"] == {"slow": {"all": {"WIDTH": 64, "num_warps": 8}}}
    assert found["rows"][0]["unusable"] > 0
    assert found["rows"][0]["best_us"] < found["rows"][0]["first_us"]
    assert tuning.read(bench.out / "cpu.json") == {"other": {"all": {"A": 1}}, **found["table"]}
    default = {"WIDTH": 16, "num_warps": 4}
    assert tuning.launch("slow", "all", bench.device, default)["WIDTH"] == 64
    bench.tuned.close()
    assert tuning.launch("slow", "all", bench.device, default) == default


def test_the_sweep_takes_no_fast_and_wrong_values(slow: Slow, bench: Bench) -> None:
    bench.until_s = time.monotonic() + 100
    slow.wrong = True
    found = sweep.sweep(bench)
    assert found["table"]["slow"]["all"]["WIDTH"] == 32


def test_the_sweep_stops_when_its_time_is_over(slow: Slow, bench: Bench) -> None:
    bench.until_s = time.monotonic() + 0.5
    with pytest.raises(Skipped):
        sweep.sweep(bench)
