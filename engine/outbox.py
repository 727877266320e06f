"""What a step made, on its way to the event loops."""

from __future__ import annotations

import asyncio
import logging

from engine.request import Output, Sink

log = logging.getLogger(__name__)

_Batch = list[tuple[Sink, Output]]


class Outbox:
    """Filled and emptied by the engine thread."""

    def __init__(self) -> None:
        self._waiting: _Batch = []

    def put(self, sink: Sink | None, output: Output) -> None:
        if sink is not None:
            self._waiting.append((sink, output))

    def deliver(self) -> tuple[int, list[Sink]]:
        """Hand everything over: (wake-ups, sinks that nobody is left to listen at).

        One wake-up per event loop, however many requests and tokens.
        """
        if not self._waiting:
            return 0, []
        batches: dict[asyncio.AbstractEventLoop, _Batch] = {}
        for sink, output in self._waiting:
            batches.setdefault(sink.loop, []).append((sink, output))
        self._waiting = []
        wakeups, gone = 0, []
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(_hand_over, batch)
                wakeups += 1
            except RuntimeError:  # the event loop was closed
                gone += [sink for sink, _ in batch]
        return wakeups, gone


def _hand_over(batch: _Batch) -> None:
    for sink, output in batch:
        try:
            sink.accept(output)
        except Exception:  # one listener's fault must not lose the others' tokens
            log.exception("delivery failed")
