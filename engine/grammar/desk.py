"""Where requests with a grammar wait until it is compiled, and the threads that do the work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from engine.errors import InternalError, UsageError
from engine.grammar.constraint import Constraint
from engine.request import Request

if TYPE_CHECKING:
    from engine.grammar.compiler import GrammarCompiler


class GrammarDesk:
    """One thread compiles, another computes masks, so that a large grammar delays only its own.

    A request is in the desk's hands from `take` until `passed` or `failed` is called with it, on
    the compiling thread, or `withdraw` has returned it.
    """

    def __init__(
        self,
        compiler: GrammarCompiler,
        passed: Callable[[Request], None],
        failed: Callable[[Request, Exception], None],
    ) -> None:
        self._compiler = compiler
        self._passed = passed
        self._failed = failed
        self._lock = threading.Lock()
        self._held: dict[int, Request] = {}
        self._compiling = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._masks = ThreadPoolExecutor(1, thread_name_prefix="grammar-mask")

    def take(self, request: Request) -> None:
        """Compile the request's grammar; returns at once. Raises UsageError once stopped."""
        with self._lock:
            self._held[request.id] = request
        try:
            self._compiling.submit(self._prepare, request)
        except RuntimeError:
            self.withdraw(request.id)
            raise UsageError("the engine is closed") from None

    def withdraw(self, request_id: int) -> Request | None:
        """Take a request back before it was passed on; None if the desk does not hold it."""
        with self._lock:
            return self._held.pop(request_id, None)

    def stop(self) -> list[Request]:
        """Compile no more; returns the requests that are left in the desk's hands."""
        with self._lock:
            left, self._held = list(self._held.values()), {}
        self._compiling.shutdown(cancel_futures=True)
        return left

    def close(self) -> None:
        """End the mask thread; after the engine thread, which may wait for it."""
        self._masks.shutdown()

    def _prepare(self, request: Request) -> None:
        grammar = request.params.grammar
        assert grammar is not None
        if request.id not in self._held:
            return  # withdrawn while it waited
        fault: Exception | None = None
        try:
            matcher = self._compiler.matcher(grammar)
            request.constraint = Constraint(matcher, self._compiler.n_vocab, self._masks)
        except UsageError as error:
            fault = error
        except Exception as error:
            fault = InternalError(f"{type(error).__name__}: {error}")
        with self._lock:  # an abort sees the request either here or passed on, never in between
            if self._held.pop(request.id, None) is None:
                return
            if fault is None:
                self._passed(request)
            else:
                self._failed(request, fault)
