"""Who may enter: lines, owners and a predicted answer, judged and counted at once."""

from __future__ import annotations

from contextlib import ExitStack

import httpx
import pytest

from gateway.admission import OWNER, RETRY_AFTER_S, Admission, Refused, Why, judge
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent.clock import ManualClock
from voice_agent.outlook import Outlook, StageLoad
from voice_agent.room import Room
from voice_agent.shedding import Shed

pytestmark = pytest.mark.unit

CALM = StageLoad("voice", 0.0, 0.1, 0.1)
OFFER = {"type": "offer", "sdp": "v=0"}


@pytest.mark.parametrize(
    ("outlook", "shed", "why"),
    [
        (Outlook(1, (CALM,)), Shed.NOTHING, None),
        (Outlook(1, (CALM,)), Shed.LLM, None),
        (Outlook(1, (CALM,)), Shed.CALLS, Why.LOAD),
        (Outlook(0, (CALM,)), Shed.REPLIES, None),  # the first one is always taken
        (Outlook(2, (StageLoad("stt", 0.0, 0.1, 0.8, 0.2),)), Shed.NOTHING, Why.STAGE),
        (Outlook(4, (StageLoad("stt", 0.0, 0.1, 0.0, 0.2),)), Shed.NOTHING, Why.STAGE),
        (Outlook(2, (StageLoad("stt", 3.0, 0.1, 0.1),)), Shed.NOTHING, Why.LATENCY),
        (Outlook(2, (CALM,), lag_s=3.0), Shed.NOTHING, Why.LATENCY),
        (Outlook(2, (CALM,), memory=(10, 20)), Shed.NOTHING, Why.MEMORY),
    ],
)
def test_one_more_is_judged_by_what_it_would_mean(
    outlook: Outlook, shed: Shed, why: Why | None
) -> None:
    assert judge(outlook, shed, 2.4) is why


def test_two_cannot_slip_into_one_place() -> None:
    """The forecast is read anew for each, with the one before counted."""
    asked: list[int] = []

    def forecast(live: int) -> Why | None:
        asked.append(live)
        return Why.STAGE if live >= 2 else None

    admission = Admission(8, forecast=forecast, clock=ManualClock())
    with ExitStack() as calls:
        for _ in range(2):
            calls.enter_context(admission.call("sip"))
        with pytest.raises(Refused) as refused, admission.call("sip"):
            pass
    assert refused.value.why is Why.STAGE
    assert refused.value.code == "VA478"
    assert asked == [0, 1, 2]
    assert admission.active == 0


def test_a_refusal_says_when_a_line_will_probably_be_free() -> None:
    clock = ManualClock()
    admission = Admission(2, clock=clock)
    for _ in range(100):  # calls last half a minute here
        with admission.call("page"):
            clock.advance(30.0)
    with admission.call("page"), admission.call("page"):
        with pytest.raises(Refused) as refused, admission.call("page"):
            pass
        assert refused.value.why is Why.LINES
        assert 15 <= refused.value.retry_after_s <= 16, "half of a call, each of two lines"
        assert admission.wait_s(4) == pytest.approx(60.0, rel=0.01)


def test_every_decision_is_counted_and_the_latest_are_kept() -> None:
    admission = Admission(1, clock=ManualClock(5.0))
    with admission.call("sip"):
        for _ in range(3):
            with pytest.raises(Refused), admission.call("realtime"):
                pass
    admission.draining = True
    with pytest.raises(Refused) as refused, admission.call("realtime"):
        pass
    assert refused.value.retry_after_s == RETRY_AFTER_S
    gauges = admission.gauges()
    assert gauges["calls_admitted_total"] == 1.0
    assert gauges["calls_refused_lines_total"] == 3.0
    assert gauges["calls_refused_draining_total"] == 1.0
    assert gauges["calls_refused_memory_total"] == 0.0
    assert admission.refused == 4
    seen = [(made.transport, made.why, made.live) for made in admission.decisions]
    assert seen == [("sip", "", 0), *[("realtime", "lines", 1)] * 3, ("realtime", "draining", 0)]


def test_an_owner_has_no_more_than_a_share() -> None:
    admission = Admission(8, 1, clock=ManualClock())
    token = OWNER.set("key:a")
    try:
        with admission.call("page"):
            with pytest.raises(Refused) as refused, admission.call("page"):
                pass
            assert refused.value.why is Why.OWNER
            OWNER.set("key:b")
            with admission.call("page"):
                assert admission.active == 2
            OWNER.set("key:a")
    finally:
        OWNER.reset(token)
    assert admission.active == 0


async def test_a_busy_server_tells_each_kind_of_caller() -> None:
    stack = FakeStack()
    stack.shed = Shed.CALLS
    stack.outlook = lambda calls: Outlook(max(1, calls), (CALM,))  # type: ignore[method-assign]
    async with serving(stack) as server, httpx.AsyncClient(base_url=server.url) as client:
        page = await client.post("/rtc/offer", json=OFFER)
        assert (page.status_code, page.json()["error"]["code"]) == (503, "VA478")
        assert int(page.headers["retry-after"]) > 0
        sdp = {"content-type": "application/sdp"}
        api = await client.post("/v1/realtime/calls?model=m", content="v=0", headers=sdp)
        assert (api.status_code, api.json()["error"]["code"]) == (503, "VA478")
        assert int(api.headers["retry-after"]) > 0
        seen = (await client.get("/api/ops")).json()
        metrics = (await client.get("/metrics")).text
    assert seen["load"]["stopped"] == "new calls"
    assert [made["why"] for made in seen["load"]["decisions"]] == ["load", "load"]
    assert "voice_agent_calls_refused_load_total 2.0" in metrics


@pytest.mark.parametrize(
    ("files", "memory_mb", "why"), [(1000, 4000, "files"), (10, 1, "process_memory")]
)
async def test_a_process_without_room_says_so_and_counts_it(
    files: int, memory_mb: int, why: str
) -> None:
    async with serving(FakeStack()) as server, httpx.AsyncClient(base_url=server.url) as client:
        server.gateway.room = Room(1000, lambda: files, lambda: memory_mb)
        page = await client.post("/rtc/offer", json=OFFER)
        assert (page.status_code, page.json()["error"]["code"]) == (503, "VA468")
        assert int(page.headers["retry-after"]) > 0
        seen = (await client.get("/api/ops")).json()
        metrics = (await client.get("/metrics")).text
    assert [made["why"] for made in seen["load"]["decisions"]] == [why]
    assert f"voice_agent_calls_refused_{why}_total 1.0" in metrics
