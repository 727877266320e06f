"""What calls leave behind goes soon after them, and not hours later.

The parts of a call know each other, so that only the cyclic collector frees them. Its thresholds
are high (`engine.warmup`): by themselves its young pass would come every quarter of an hour on a
quiet server, and what had grown old in a call would stay for days. What was frozen at start is not
looked at. A pass stops every thread that runs Python: one over all of 74 live calls takes 5 to 18
ms of CPU, so that with so many of them it is made seldom, and else over what is new.
"""

from __future__ import annotations

import asyncio
import gc

PERIOD_S = 10.0
AT_LEAST = 2_000
"""Objects made and not freed since the last pass; a server without calls makes fewer."""
MOST = 20_000
"""Objects that a pass may look at."""
WHOLE_S = 600.0
"""A pass over all comes at the latest then."""


async def tidy(period_s: float = PERIOD_S, most: int = MOST, whole_s: float = WHOLE_S) -> None:
    """Until cancelled: a collection now and then, if there is anything to collect."""
    loop = asyncio.get_running_loop()
    whole_at_s = loop.time()
    while True:
        await asyncio.sleep(period_s)
        if gc.get_count()[0] < AT_LEAST:
            continue
        if len(gc.get_objects()) <= most or loop.time() - whole_at_s >= whole_s:
            gc.collect()
            whole_at_s = loop.time()
        else:
            gc.collect(1)
