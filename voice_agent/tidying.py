"""What calls leave behind goes soon after them, and not hours later.

The parts of a call know each other, so that only the cyclic collector frees them. Its thresholds
are high (`engine.warmup`): by themselves its young pass would come every quarter of an hour on a
quiet server, and what had grown old in a call would stay for days. What was frozen at start is not
looked at, so that a whole pass costs some milliseconds.
"""

from __future__ import annotations

import asyncio
import gc

PERIOD_S = 30.0
AT_LEAST = 2_000
"""Objects made and not freed since the last pass; a server without calls makes fewer."""


async def tidy(period_s: float = PERIOD_S) -> None:
    """Until cancelled: a collection now and then, if there is anything to collect."""
    while True:
        await asyncio.sleep(period_s)
        if gc.get_count()[0] >= AT_LEAST:
            gc.collect()
