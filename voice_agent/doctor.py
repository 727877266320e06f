"""Whether this machine can run the server: a list of findings, worst first decides."""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from voice_agent.config import Config
from voice_agent.errors import UsageError, VoiceAgentError
from voice_agent.llm_section import RemoteSection
from voice_agent.machine import Machine
from voice_agent.models import ModelState, ModelStore
from voice_agent.remote_check import RemoteState, check_remote

MIN_PYTHON = (3, 11)
MIN_MEMORY_MB = 3000
MIN_DISK_MB = 1500
NEEDED = ("silero-vad", "smart-turn-v3.2")
Group = tuple[str, tuple[str, ...]]
ONE_OF: tuple[Group, ...] = (
    ("a recogniser", ("whisper-tiny.en", "whisper-base")),
    ("a voice", ("piper-joe", "kokoro-int8")),
)
LANGUAGE_MODEL: Group = ("a language model", ("qwen2.5-0.5b", "qwen2.5-1.5b", "smollm2-135m"))
Ask = Callable[[str, RemoteSection], tuple[RemoteState, str]]


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """what: the thing looked at; detail: what was found and, unless OK, what to do."""

    what: str
    verdict: Verdict
    detail: str


def examine(
    config: Config,
    machine: Machine,
    store: ModelStore,
    *,
    python: tuple[int, ...] = sys.version_info[:3],
    port_error: Callable[[str, int], str] | None = None,
    ask: Ask = check_remote,
) -> Iterator[Finding]:
    """Look at everything but the speeds. port_error: (host, port) -> "" when it is free. ask:
    (name, endpoint) -> its state, and what was found."""
    yield _python(python)
    yield _kernels()
    yield _cpu(machine)
    yield _gpu(machine, config)
    yield _memory(machine)
    yield _disk(store)
    busy = (port_error or why_port_unusable)(config.server.host, config.server.port)
    place = f"{config.server.host}:{config.server.port}"
    yield Finding("port", Verdict.FAIL if busy else Verdict.OK, busy or f"{place} is free")
    yield from _models(store, config)
    yield from _remotes(config, ask)
    yield _pip()


def worst(findings: list[Finding]) -> Verdict:
    """FAIL beats WARN beats OK."""
    order = [Verdict.OK, Verdict.WARN, Verdict.FAIL]
    return max((f.verdict for f in findings), key=order.index, default=Verdict.OK)


def why_port_unusable(host: str, port: int) -> str:
    """Why a server could not listen there, or "". Does not listen itself."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            s.bind((host, port))
        except OSError as e:
            return f"{host}:{port}: {e.strerror or e}"
    return ""


def foreign_kernels() -> str:
    """The package to remove when `kernels` would not be ours, else "".

    Ours is a folder without `__init__.py` beside `voice_agent`; anything else wins over it or is
    imported by transformers in its place.
    """
    ours = Path(__file__).resolve().parent.parent / "kernels"
    spec = find_spec("kernels")
    if spec is None:
        return ""
    first = next(iter(spec.submodule_search_locations or ()), "")
    if spec.origin is None and first and Path(first).resolve() == ours:
        return ""
    owners = metadata.packages_distributions().get("kernels", [])
    named = [o for o in owners if o != "voice-agent"]
    return named[0] if named else "kernels"


def check_kernels() -> None:
    """Raises UsageError VA471 when a foreign `kernels` package is in the way."""
    if package := foreign_kernels():
        raise UsageError(_kernels_text(package), code="VA471")


def _kernels_text(package: str) -> str:
    return (
        f"the installed package {package!r} provides a module called `kernels` and hides ours; "
        f"remove it: {sys.executable} -m pip uninstall {package}"
    )


def _python(version: tuple[int, ...]) -> Finding:
    text = ".".join(map(str, version))
    if version < MIN_PYTHON:
        return Finding("python", Verdict.FAIL, f"{text}; 3.11 or newer is needed")
    return Finding("python", Verdict.OK, text)


def _kernels() -> Finding:
    if package := foreign_kernels():
        return Finding("kernels", Verdict.FAIL, _kernels_text(package))
    return Finding("kernels", Verdict.OK, "our own")


def _cpu(machine: Machine) -> Finding:
    features = " ".join(sorted(machine.features)) or "no vector extensions known"
    detail = f"{machine.cpu}, {machine.cores} core{'s' if machine.cores > 1 else ''}, {features}"
    if machine.cores < 2:
        return Finding("cpu", Verdict.WARN, f"{detail}; two cores are the least for a good call")
    if "avx2" not in machine.features:
        return Finding("cpu", Verdict.WARN, f"{detail}; without avx2 int8 products are slow")
    return Finding("cpu", Verdict.OK, detail)


def _gpu(machine: Machine, config: Config) -> Finding:
    wanted = config.profile == "gpu"
    if machine.gpu is None:
        if wanted:
            return Finding("gpu", Verdict.FAIL, 'none found, but profile = "gpu"')
        return Finding("gpu", Verdict.OK, "none; the CPU profile applies")
    detail = f"{machine.gpu.name}, {machine.gpu.memory_mb} MB"
    if machine.gpu.usable:
        use = "recognition, engine and voice run here"
        if not wanted:
            use = 'not used; profile = "gpu" moves recognition, engine and voice to it'
        return Finding("gpu", Verdict.OK, f"{detail}; {use}")
    return Finding("gpu", Verdict.FAIL if wanted else Verdict.WARN, f"{detail}: {machine.gpu.why}")


def _memory(machine: Machine) -> Finding:
    detail = f"{machine.free_mb} of {machine.memory_mb} MB free"
    if machine.free_mb < MIN_MEMORY_MB:
        return Finding("memory", Verdict.WARN, f"{detail}; {MIN_MEMORY_MB} MB are comfortable")
    return Finding("memory", Verdict.OK, detail)


def _disk(store: ModelStore) -> Finding:
    folder = store.root
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    free = shutil.disk_usage(folder).free >> 20
    detail = f"{free} MB free for {store.root}"
    if free < MIN_DISK_MB:
        return Finding("disk", Verdict.WARN, f"{detail}; the models need up to {MIN_DISK_MB} MB")
    return Finding("disk", Verdict.OK, detail)


def _models(store: ModelStore, config: Config) -> Iterator[Finding]:
    lack = Verdict.WARN if config.models.fetch else Verdict.FAIL
    for name in NEEDED:
        yield _model(store, name, lack)
    groups = (*ONE_OF, LANGUAGE_MODEL) if config.llm.needs_engine else ONE_OF
    for what, names in groups:
        have = [n for n in names if store.present(n)]
        if have:
            for name in have:
                yield _model(store, name, lack)
        else:
            text = f"{what} is missing; run: voice-agent models fetch {names[0]}"
            yield Finding("models", lack, text)


def _model(store: ModelStore, name: str, lack: Verdict) -> Finding:
    try:
        store.path(name)
    except VoiceAgentError as e:
        damaged = e.code == "VA420"
        return Finding(f"model {name}", Verdict.FAIL if damaged else lack, str(e))
    return Finding(f"model {name}", Verdict.OK, ModelState.READY.value)


def _remotes(config: Config, ask: Ask) -> Iterator[Finding]:
    """A silent endpoint is a failure unless something else answers."""
    found = {name: ask(name, remote) for name, remote in config.llm.remotes.items()}
    all_silent = {state for state, _ in found.values()} == {RemoteState.SILENT}
    silent = Verdict.FAIL if all_silent and not config.llm.needs_engine else Verdict.WARN
    verdicts = {
        RemoteState.ANSWERS: Verdict.OK,
        RemoteState.EXPOSED: Verdict.WARN,
        RemoteState.SILENT: silent,
    }
    for name, (state, text) in found.items():
        yield Finding(f"language model {name}", verdicts[state], text)


def _pip() -> Finding:
    if find_spec("pip") is None:
        return Finding(
            "pip", Verdict.WARN, f"missing, models cannot be fetched: {sys.executable} -m ensurepip"
        )
    return Finding("pip", Verdict.OK, "present")
