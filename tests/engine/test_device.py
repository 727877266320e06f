"""What is asked of CUDA, on a stand-in that keeps a list."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from triton import knobs

from engine.device import DECODE, PREFILL, CudaDevice, HostDevice, open_device
from engine.errors import UsageError
from kernels import compile_watch

pytestmark = pytest.mark.unit


class FakeCuda:
    """Streams by name; everything that happens goes to `told`."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.current = "default"

    class Stream:
        def __init__(self, cuda: FakeCuda, priority: int) -> None:
            self.cuda, self.name = cuda, f"stream {priority}"

        def wait_stream(self, other: Any) -> None:
            self.cuda.told.append((self.name, "waits for", getattr(other, "name", other)))

        def synchronize(self) -> None:
            self.cuda.told.append((self.name, "is waited for"))

    class Graph:
        def __init__(self, cuda: FakeCuda) -> None:
            self.cuda = cuda

        def replay(self) -> None:
            self.cuda.told.append("replay")

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph: Any, **options: Any) -> Iterator[None]:
        self.told.append(("capture", options["pool"], options["capture_error_mode"]))
        assert options["stream"] is self.current
        yield
        self.told.append("captured")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    for name, stand_in in {
        "is_available": lambda: True,
        "Stream": lambda priority: FakeCuda.Stream(fake, priority),
        "current_stream": lambda: fake.current,
        "stream": fake.stream,
        "graph": fake.graph,
        "CUDAGraph": lambda: FakeCuda.Graph(fake),
        "graph_pool_handle": lambda: "the pool",
        "mem_get_info": lambda: (1, 2),
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return fake


def test_work_goes_on_where_the_other_stream_stopped(cuda: FakeCuda) -> None:
    device = CudaDevice()
    for priority in (PREFILL, PREFILL, DECODE, DECODE, PREFILL):
        with device.work(priority):
            assert torch.is_inference_mode_enabled()
            cuda.told.append(cuda.current.name)
    assert cuda.told == [
        ("stream 0", "waits for", "default"), "stream 0", "stream 0",
        ("stream -1", "waits for", "stream 0"), "stream -1", "stream -1",
        ("stream 0", "waits for", "stream -1"), "stream 0",
    ]  # fmt: skip
    assert cuda.current == "default"


def test_a_graph_is_warm_before_it_is_recorded(cuda: FakeCuda) -> None:
    device, noted = CudaDevice(), compile_watch.total()
    replays = [device.capture(lambda: cuda.told.append("work"), "a test") for _ in range(2)]
    once = [
        "work", "work", ("stream -1", "is waited for"), ("capture", "the pool", "thread_local"),
        "work", "captured",
    ]  # fmt: skip
    assert cuda.told == [("stream -1", "waits for", "default"), *once, *once]
    assert compile_watch.total() == noted + 2
    replays[0]()
    assert cuda.told[-1] == "replay"
    assert device.memory() == (1, 2)


def test_a_late_compile_is_told(cuda: FakeCuda, caplog: pytest.LogCaptureFixture) -> None:
    device = CudaDevice()
    before = knobs.runtime.jit_post_compile_hook
    try:
        device.watch(True)
        hook = knobs.runtime.jit_post_compile_hook
        assert hook is not None
        hook(
            key="k", repr="kernel[num_warps=4]", fn=None, compile={}, is_manual_warmup=False,
            already_compiled=False,
        )  # fmt: skip
        assert caplog.record_tuples[-1][1] == logging.WARNING
        assert "kernel[num_warps=4]" in caplog.text
        device.watch(False)
        assert knobs.runtime.jit_post_compile_hook is None
    finally:
        knobs.runtime.jit_post_compile_hook = before


def test_the_host_does_everything_at_once() -> None:
    device = open_device("cpu")
    assert isinstance(device, HostDevice)
    with device.work(DECODE):
        device.mark().synchronize()
    free, total = device.memory()
    assert 0 < free <= total
    with pytest.raises(UsageError, match="cpu or cuda"):
        open_device("xpu")
