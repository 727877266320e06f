"""The Dockerfile: well formed, its steps the Makefile's own targets, and they work."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "docs" / "deploy" / "Dockerfile"
HADOLINT = shutil.which("hadolint", path=f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}")
WORDS = {
    "FROM", "ARG", "SHELL", "RUN", "WORKDIR", "USER", "ENV", "COPY", "VOLUME", "EXPOSE",
    "HEALTHCHECK", "STOPSIGNAL", "ENTRYPOINT", "CMD",
}  # fmt: skip


@dataclass(frozen=True)
class Step:
    word: str
    rest: str


def steps() -> list[Step]:
    text = re.sub(r"^\s*#.*\n", "", FILE.read_text("utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [Step(*line.split(None, 1)) for line in lines if line.strip()]


def make_steps() -> list[list[str]]:
    """Arguments of every `RUN make`."""
    return [shlex.split(s.rest) for s in steps() if s.word == "RUN" and s.rest.startswith("make")]


def copied() -> list[str]:
    found: list[str] = []
    for step in steps():
        if step.word == "COPY":
            *sources, _ = [w for w in step.rest.split() if not w.startswith("--")]
            found += sources
    return found


@pytest.mark.unit
def test_it_is_well_formed() -> None:
    assert {s.word for s in steps()} <= WORDS
    assert steps()[0] == Step("FROM", "python:3.11-slim-bookworm")
    words = [s.word for s in steps()]
    assert (
        words.index("USER") < words.index("COPY") < words.index("ENTRYPOINT") < words.index("CMD")
    )
    user = next(s.rest for s in steps() if s.word == "USER")
    assert user == "10001:10001"
    for step in steps():
        if step.word == "COPY":
            assert step.rest.startswith(f"--chown={user} "), step.rest


@pytest.mark.unit
def test_its_steps_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    asked = [words[1] for words in make_steps()]
    assert asked == ["install", "kernels", "models"]
    assert set(asked) <= targets
    other = [s.rest for s in steps() if s.word == "RUN" and not s.rest.startswith("make")]
    assert all(re.match(r"(apt-get update|useradd) ", rest) for rest in other), other


@pytest.mark.unit
def test_what_it_copies_exists_and_is_let_through() -> None:
    ignore = (FILE.parent / "Dockerfile.dockerignore").read_text().splitlines()
    for name in copied():
        assert (ROOT / name).exists(), name
        assert f"!{name}" in ignore, name
    let_through = {line[1:] for line in ignore if line.startswith("!")}
    assert let_through == set(copied())
    assert ignore[1] == "*"


@pytest.mark.unit
def test_no_registry_but_the_default_one_is_named() -> None:
    for name in ("Dockerfile", "../../docker-compose.yml"):
        text = (FILE.parent / name).read_text("utf-8")
        images = re.findall(r"^\s*(?:FROM|image:) (\S+)", text, re.MULTILINE)
        assert images
        assert not [image for image in images if "." in image.split(":")[0].split("/")[0]]
        assert not re.search(r"index-url|registry\.|proxy", text.replace("trusted_proxies", ""))


@pytest.mark.unit
@pytest.mark.skipif(HADOLINT is None, reason="NOT RUN: needs hadolint")
def test_hadolint_has_nothing_to_say() -> None:
    assert HADOLINT is not None
    done = subprocess.run([HADOLINT, str(FILE)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_its_commands_work_in_an_empty_folder(tmp_path: Path) -> None:
    """What is copied, then every `RUN make`, with the folders it sets, and a server that starts."""
    app = tmp_path / "app"
    app.mkdir()
    for name in copied():
        subprocess.run(["cp", "-r", "--parents", name, str(app)], cwd=ROOT, check=True)
    for cache in app.rglob("__pycache__"):
        shutil.rmtree(cache)
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("VOICE_AGENT", "VIRTUAL_ENV"))}
    env = kept | {
        "VOICE_AGENT_MODELS": str(tmp_path / "models"),
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }
    for words in make_steps():
        command = [word.replace("$DEVICE", "cpu").replace("$TORCH_INDEX", "") for word in words]
        done = subprocess.run(command, cwd=app, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stdout[-2000:], done.stderr[-3000:])
    script = app / "docs" / "deploy" / "entrypoint.sh"
    binary = app / ".venv" / "bin" / "voice-agent"
    with subprocess.Popen(
        ["/bin/sh", str(script), "up", "--no-fetch", "--port", "0", "--llm", "qwen2.5-0.5b",
         "--stt", "whisper-tiny.en", "--voice", "piper-joe"],
        cwd=app, env=env | {"VOICE_AGENT_BIN": str(binary)}, stdout=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("ready: http://")
        finally:
            server.terminate()
        assert server.wait(60) == 0
