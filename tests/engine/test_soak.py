"""Ten thousand calls that hang up or change their mind: nothing is left of them."""

from __future__ import annotations

import gc
import random
import sys

import pytest

from engine.generation import Generation
from engine.request import Request
from engine.sampling import SamplingParams
from engine.session import Session
from tests.engine.test_loop import prompt_of
from tests.engine.test_session import Bench

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("overlap", "most"), [(False, 10_000), (True, 4_000)])
async def test_ten_thousand_random_aborts_leave_constant_memory(overlap, most):
    picks = random.Random(8)
    bench = Bench(60, max_num_seqs=5, overlap=overlap)
    bench.runner.keep_batches = False
    counters = bench.loop.counters

    async def abort_some(most: int) -> int:
        """Allocations alive once everything has come to rest."""
        open_calls: list[tuple[Session | None, Generation | None]] = []
        while counters.aborted < most:
            if len(open_calls) < 6:
                prompt = prompt_of(picks.randint(1, 14), salt=picks.randrange(4))
                params = SamplingParams(max_tokens=picks.randint(1, 20))
                if picks.random() < 0.5:
                    reply = bench.engine.submit(prompt, params, call=str(counters.finished))
                    open_calls.append((None, reply))
                else:
                    session = bench.engine.session(tenant=picks.choice("ab"))
                    session.extend(prompt)
                    reply = session.commit(params) if picks.random() < 0.7 else None
                    open_calls.append((session, reply))
            else:
                session, reply = open_calls.pop(picks.randrange(len(open_calls)))
                if session is not None:
                    session.close()
                else:
                    reply.abort()
            if picks.random() < 0.4:
                bench.loop.step(bench.clock.now())
                bench.clock.time_s += 0.01
        for session, reply in open_calls:
            session.close() if session is not None else reply.abort()
        open_calls.clear()
        session = reply = None
        await bench.settle()
        await bench.step(2)
        gc.collect()
        return sys.getallocatedblocks()

    early = await abort_some(most // 5)
    late = await abort_some(most)
    assert counters.aborted >= most
    assert counters.abort_steps_max <= 2
    assert counters.integrity_failures == 0
    assert late - early < 500, "not one object for six aborts"
    assert not [o for o in gc.get_objects() if type(o) in (Request, Generation, Session)]
    assert bench.engine._n_open == 0
    assert bench.all_free()
