"""Where a model runs: what CUDA does on streams and in graphs, a CPU does at once."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from engine.errors import CapacityError, UsageError
from kernels import compile_watch

log = logging.getLogger(__name__)

DECODE, PREFILL = -1, 0
"""Stream priorities, lower first: recognition and the first piece of a voice go before both."""


class Mark(Protocol):
    """A point in the work handed to the device."""

    def synchronize(self) -> None:
        """Wait until the device has passed it."""


class Device(Protocol):
    """The few things in which a CPU and a GPU differ."""

    name: str
    """As `kernels.resolve` and PyTorch know it."""
    records_references: bool
    """Whether `capture` takes the kernels' references, which wait for the device."""

    def work(self, priority: int) -> AbstractContextManager[None]:
        """A context: what is launched inside runs at this priority, after all launched before."""

    def mark(self) -> Mark:
        """The point that the launched work has now reached, inside `work`."""

    def staging(self, n_bytes: int) -> Tensor:
        """uint8 [n_bytes] of host memory from which copies to the device are asynchronous."""

    def send(self, array: NDArray[Any]) -> Tensor:
        """The same numbers on the device; does not wait for it."""

    def capture(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        """`work`, ready to be done again on the same memory at the cost of one launch. what: it is,
        for the log."""

    def watch(self, on: bool) -> None:
        """Whether a kernel that has to be compiled from here on is told in the log."""

    def memory(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""


class _Passed:
    def synchronize(self) -> None:
        pass


class HostDevice:
    """The CPU: everything happens at once, and a graph is the function itself."""

    name = "cpu"
    records_references = True

    @contextmanager
    def work(self, priority: int) -> Iterator[None]:
        with torch.inference_mode():
            yield

    def mark(self) -> Mark:
        return _Passed()

    def staging(self, n_bytes: int) -> Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8)

    def send(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array)

    def capture(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        return work

    def watch(self, on: bool) -> None:
        pass

    def memory(self) -> tuple[int, int]:
        import psutil

        memory = psutil.virtual_memory()
        return int(memory.available), int(memory.total)


class CudaDevice:
    """One NVIDIA GPU. A stream per priority; each goes on where the other stopped.

    Nothing here waits for the whole device: other stages of a call run on it.
    """

    name = "cuda"
    records_references = False

    def __init__(self) -> None:
        """Raises UsageError where PyTorch sees no GPU that it can use."""
        if not torch.cuda.is_available():
            raise UsageError("device = cuda: PyTorch sees no usable NVIDIA GPU here; use cpu")
        self._streams = {level: _stream(level) for level in (DECODE, PREFILL)}
        self._last: torch.cuda.Stream | None = None
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def work(self, priority: int) -> Iterator[None]:
        stream = self._streams[priority]
        before = self._last or torch.cuda.current_stream()
        if stream != before:
            stream.wait_stream(before)
        self._last = stream
        with torch.inference_mode(), torch.cuda.stream(stream):
            yield

    def mark(self) -> Mark:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def staging(self, n_bytes: int) -> Tensor:
        return torch.zeros(n_bytes, dtype=torch.uint8, pin_memory=True)

    def send(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).pin_memory().to("cuda", non_blocking=True)

    def capture(self, work: Callable[[], None], what: str) -> Callable[[], None]:
        """All graphs share one pool of memory: capture the largest first."""
        with self.work(DECODE):
            stream = torch.cuda.current_stream()
            for _ in range(2):  # kernels compile and libraries take their memory now
                work()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            # Other threads may use the GPU meanwhile: only what this one does is recorded.
            with torch.cuda.graph(
                graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"
            ):
                work()
        compile_watch.note(f"CUDA graph of {what}")
        return graph.replay

    def watch(self, on: bool) -> None:
        if importlib.util.find_spec("triton") is not None:
            from triton import knobs

            knobs.runtime.jit_post_compile_hook = _compiled_late if on else None

    def memory(self) -> tuple[int, int]:
        return torch.cuda.mem_get_info()


def _compiled_late(**told: Any) -> None:
    log.warning("a kernel was compiled while calls wait: %s", told.get("repr"))


def _stream(priority: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(priority=priority)  # type: ignore[no-untyped-call]


def open_device(name: str) -> Device:
    """ "cpu" or "cuda". Raises UsageError."""
    if name == "cpu":
        return HostDevice()
    if name == "cuda":
        return CudaDevice()
    raise UsageError(f"device must be cpu or cuda, not {name}")


def cache_bytes(device: Device, share: float, working: int) -> int:
    """What a KV cache may take so that this process fills `share` of the device's memory.

    What is in use already (weights, other stages) and `working` bytes of a step come out of the
    share. Raises CapacityError when nothing is left.
    """
    free, total = device.memory()
    left = int(total * share) - (total - free) - working
    if left <= 0:
        raise CapacityError(
            f"no room for a KV cache: {share:.0%} of {total >> 20} MiB are allowed, "
            f"{(total - free) >> 20} MiB are in use and a step works in {working >> 20} MiB; "
            "raise gpu_memory_utilization or take a smaller model"
        )
    return left
