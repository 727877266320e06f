"""The CUDA object: built for every architecture, within limits, loadable anywhere; or a reason."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from kernels import cuda_build
from kernels.__main__ import main as make_kernels
from kernels.cuda_build import CudaUnavailable, Kernels, LaunchError

pytestmark = pytest.mark.interp

SHARED_LIMIT = 48 * 1024
"""Bytes a block may have anywhere without asking for more."""
THREADS = {"decode": 128}
"""Of a block, by kernel; 256 where nothing is said."""
FUNCTIONS = (
    "linear_group_round", "linear_group_product", "linear_group_unpack",
    "paged_attention_decode_run",
)  # fmt: skip
KERNELS = {"round_rows": 3, "product": 15, "unpack": 5, "decode": 8}
"""How many of each there are."""


@pytest.fixture(scope="module")
def built() -> Path:
    """The object for all architectures: some 25 s of one core where it isn't cached."""
    if not cuda_build.nvcc():
        pytest.skip("NOT RUN: needs nvcc")
    return cuda_build.build()


def cuobjdump(*arguments: str | Path) -> str:
    """What Triton's own cuobjdump says; nvcc may come without one."""
    triton = pytest.importorskip("triton", reason="NOT RUN: needs triton's cuobjdump")
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    return subprocess.run([tool, *arguments], capture_output=True, text=True, check=True).stdout


def test_every_kernel_is_there_for_every_architecture_and_spills_nothing(built: Path) -> None:
    text = cuobjdump("--dump-resource-usage", built)
    used = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
    found = {arch: dict.fromkeys(KERNELS, 0) for arch in cuda_build.ARCHS}
    for part in re.split(r"arch = sm_", text)[1:]:
        for name, *numbers in used.findall(part):
            registers, stack, shared, local = map(int, numbers)
            kernel = next(k for k in KERNELS if f"{len(k)}{k}I" in name)
            found[part.split()[0]][kernel] += 1
            assert (stack, local) == (0, 0), name
            assert shared <= SHARED_LIMIT, name
            assert registers * THREADS.get(kernel, 256) <= 65536, f"{name} can't be launched"
    assert found == dict.fromkeys(cuda_build.ARCHS, KERNELS)


def test_the_instructions_that_the_kernels_are_built_on(built: Path) -> None:
    """Byte and half products, 16-byte loads and copies: what the sources ask for is what runs."""
    code = cuobjdump("-sass", "-arch", "sm_90", built)
    for instruction in ("IMMA.16832.U8.S8", "HMMA.16816.F32 ", "HMMA.16816.F32.BF16", "MOVM.16",
                        "LDGSTS.E.BYPASS.128", "LDG.E.128.CONSTANT"):  # fmt: skip
        assert instruction in code, instruction
    assert not re.search(r"\b(LDL|STL)\b", code), "local memory"


def test_it_loads_without_a_driver_and_says_so_at_a_launch(built: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("NOT RUN: needs a machine without a GPU")
    loaded = ctypes.CDLL(str(built))
    assert all(hasattr(loaded, name) for name in FUNCTIONS)
    x = torch.zeros(4096, dtype=torch.uint8)
    calls = (
        ("linear_group_round", x, 1, 32, 1, 32, 4, 0, 1, x),
        ("linear_group_product", x, 4, 0, 32, 16, x, 1, 1, None, x, 1, 16),
        ("linear_group_unpack", x, 4, 0, 32, 16, x, 1),
        ("paged_attention_decode_run", x, 64, 64, x, 1024, 1024, 1024, x, 1, x, 1, 1, 1, 64, 16, 0,
         16, 1, 1.0, 1, x, 64, 64, x, x, x),
    )  # fmt: skip
    for name, *given in calls:
        with pytest.raises(LaunchError, match=f"{name}.*no NVIDIA driver") as raised:
            Kernels(loaded, "cuda").launch(name, *given)
        assert raised.value.code == cuda_build.NO_DRIVER


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Nothing compiled yet, nothing remembered, nothing set."""
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH", "VOICE_AGENT_CUDA_OBJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(cuda_build, "library", cuda_build.library.__wrapped__)
    return monkeypatch


def test_no_nvcc(fresh: pytest.MonkeyPatch) -> None:
    fresh.setattr(cuda_build.shutil, "which", lambda name, path=None: None)
    with pytest.raises(CudaUnavailable, match="no nvcc found: put CUDA"):
        cuda_build.library()
    with pytest.raises(CudaUnavailable, match=r"install g\+\+"):
        cuda_build.build_emulated()


def test_nvcc_is_found_in_cuda_home(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nvcc").write_text("#!/bin/sh\necho not this one >&2\nexit 1\n")
    (tmp_path / "bin" / "nvcc").chmod(0o755)
    fresh.setenv("PATH", "/bin:/usr/bin")
    fresh.setenv("CUDA_HOME", str(tmp_path))
    assert cuda_build.nvcc() == str(tmp_path / "bin" / "nvcc")
    with pytest.raises(CudaUnavailable, match="can't be built"):
        cuda_build.library()


def compiler(folder: Path, script: str) -> str:
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && exit 0\n{script}\n')
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_fails(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setattr(cuda_build, "nvcc", lambda: compiler(tmp_path, "echo no such flag; exit 1"))
    with pytest.raises(CudaUnavailable, match="failed: no such flag"):
        cuda_build.library()
    assert not list(tmp_path.glob("voice-agent/*"))


def test_what_was_compiled_is_no_program(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = 'while [ "$1" != -o ]; do shift; done; echo nonsense > "$2"'
    fresh.setattr(cuda_build, "nvcc", lambda: compiler(tmp_path, script))
    with pytest.raises(CudaUnavailable, match="can't be loaded"):
        cuda_build.library()


def test_an_object_built_elsewhere(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.setenv("VOICE_AGENT_CUDA_OBJECT", str(tmp_path / "none.so"))
    with pytest.raises(CudaUnavailable, match=r"none\.so"):
        cuda_build.library()


def test_compiled_again_only_for_other_sources(fresh: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("NOT RUN: needs g++")
    here = tmp_path / "kernels"
    source, header = here / "op" / "cuda.cu", here / "native" / "device.cuh"
    for path in (source, header):
        path.parent.mkdir(parents=True)
        path.write_text("\n")
    fresh.setattr(cuda_build, "_HERE", here)
    first = cuda_build.build_emulated()
    made = first.stat().st_mtime_ns
    assert cuda_build.build_emulated() == first
    assert first.stat().st_mtime_ns == made
    source.write_text("// more\n")
    second = cuda_build.build_emulated()
    header.write_text("// more\n")
    assert len({first, second, cuda_build.build_emulated()}) == 3


def test_make_kernels_says_what_is_missing(
    fresh: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh.setattr(cuda_build.shutil, "which", lambda name, path=None: None)
    assert make_kernels() == 0
    assert "NOT BUILT: CUDA kernels: no nvcc found" in capsys.readouterr().out
    fresh.setattr(cuda_build, "nvcc", lambda: compiler(tmp_path, "exit 1"))
    assert make_kernels() == 1
