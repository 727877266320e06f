"""The clock, admission, metrics and the outbox, each alone."""

from __future__ import annotations

import asyncio
import base64
import json

import httpx
import pytest
import websockets

from engine.histogram import Histogram
from gateway.admission import Admission
from gateway.metrics import Metrics
from gateway.pacer import MAX_CATCH_UP, PERIOD_S, Pacer
from gateway.page_events import page_event
from gateway.realtime_ws import QUEUE_MESSAGES, Outbox
from tests.support.fake_call import FakeStack
from tests.support.live_server import serving
from voice_agent import events as ev
from voice_agent.clock import ManualClock
from voice_agent.errors import CapacityError
from voice_agent.trace import Mark, TurnTrace
from voice_agent.types import ReplyId, TurnId

pytestmark = pytest.mark.unit


def test_the_clock_never_drifts_and_makes_good_a_short_stall() -> None:
    clock, ticks = ManualClock(100.0), []
    pacer = Pacer(clock)
    pacer.join(lambda: ticks.append(clock.now()), lambda fault: None)
    wait = pacer.step()
    for i in range(500):
        clock.advance(wait + 0.0013)  # every wake-up is late
        wait = pacer.step()
        assert len(ticks) == i + 2
    clock.advance(0.1)
    pacer.step()
    assert len(ticks) == 501 + 5
    assert pacer.skipped == 0


def test_a_long_stall_is_skipped_and_counted() -> None:
    clock, ticks = ManualClock(), []
    pacer = Pacer(clock)
    pacer.join(lambda: ticks.append(1), lambda fault: None)
    pacer.step()
    clock.advance(2.0)
    pacer.step()
    assert len(ticks) <= MAX_CATCH_UP + 2
    assert pacer.skipped == pytest.approx(2.0 / PERIOD_S - MAX_CATCH_UP, abs=1)


def test_a_faulty_subscriber_hurts_no_other() -> None:
    pacer, faults, ticks = Pacer(ManualClock()), [], []

    def fail() -> None:
        raise ValueError("broken")

    pacer.join(fail, faults.append)
    leave = pacer.join(lambda: ticks.append(1), faults.append)
    pacer.step()
    assert len(faults) == 1
    assert ticks == [1]
    assert len(pacer) == 1
    leave()
    leave()
    assert len(pacer) == 0


def test_a_line_is_given_back_whatever_happens() -> None:
    admission = Admission(1)

    def fail() -> None:
        with admission.call():
            with pytest.raises(CapacityError) as full, admission.call():
                pass
            assert full.value.code == "VA460"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert admission.active == 0
    admission.draining = True
    with pytest.raises(CapacityError) as draining, admission.call():
        pass
    assert draining.value.code == "VA461"
    assert admission.refused == 2


def trace() -> TurnTrace:
    t = TurnTrace(TurnId("c", 3), ReplyId("c", 5), outcome="spoken", interrupted=True)
    t.marks = {
        Mark.SPEECH_END: 10.0, Mark.COMMIT: 10.25, Mark.LLM_SUBMIT: 10.1,
        Mark.LLM_FIRST_TEXT: 10.3, Mark.FIRST_CLAUSE: 10.35, Mark.TTS_FIRST_AUDIO: 10.5,
        Mark.FIRST_SOUND: 10.52, Mark.BARGE_IN_ONSET: 10.9,
        Mark.LAST_FRAME: 11.01, Mark.BARGE_IN_DECIDED: 11.4,
    }  # fmt: skip
    t.prompt_tokens, t.cached_tokens, t.output_tokens, t.deadline_s = 100, 80, 12, 10.6
    t.transcript = t.reply_text = t.heard = "words"
    return t


def test_metrics_read_the_trace() -> None:
    metrics = Metrics(lambda: {"engine_running": 3.0})
    metrics.turn(trace())
    text = metrics.render().decode()
    for line in (
        "voice_agent_engine_running 3.0",
        'voice_agent_turns_total{outcome="spoken"} 1.0',
        "voice_agent_interruptions_total 1.0",
        'voice_agent_voice_to_voice_seconds_bucket{le="0.6"} 1.0',
        'voice_agent_voice_to_voice_seconds_bucket{le="0.5"} 0.0',
        'voice_agent_stage_seconds_bucket{le="0.3",stage="end_of_turn"} 1.0',
        'voice_agent_turn_tokens_total{kind="cached"} 80.0',
        'voice_agent_barge_in_stop_seconds_bucket{le="0.15"} 1.0',
        'voice_agent_first_sound_lateness_seconds_bucket{le="0.0"} 1.0',
    ):
        assert line in text


def test_metrics_show_the_engines_distributions_by_class() -> None:
    ttft = Histogram((0.1, 0.2))
    for seconds in (0.05, 0.15, 0.16, 9.0):
        ttft.observe(seconds)
    metrics = Metrics(dict, lambda: {"engine_ttft_seconds": {"live": ttft.snapshot()}})
    text = metrics.render().decode()
    for line in (
        'voice_agent_engine_ttft_seconds_bucket{class="live",le="0.1"} 1.0',
        'voice_agent_engine_ttft_seconds_bucket{class="live",le="0.2"} 3.0',
        'voice_agent_engine_ttft_seconds_bucket{class="live",le="+Inf"} 4.0',
        'voice_agent_engine_ttft_seconds_count{class="live"} 4.0',
        'voice_agent_engine_ttft_seconds_sum{class="live"} 9.36',
    ):
        assert line in text


def test_the_page_gets_the_trace_as_json() -> None:
    data = page_event(ev.TurnTraced(trace()))
    assert data is not None
    assert json.loads(json.dumps(data)) == data
    assert data["voice_to_voice_ms"] == pytest.approx(520)
    assert data["marks"]["commit"] == 250.0
    assert (data["transcript"], data["reply_text"], data["heard"]) == ("", "", "")
    assert page_event(ev.SpeechStopped(TurnId("c", 0), 5)) is None


def test_the_outbox_is_bounded_and_drops_what_was_cut() -> None:
    box = Outbox()
    box.put("a", "r1")
    box.put("b", "r2")
    box.put("c")
    box.drop("r1")
    sent: list[str] = []

    class Socket:
        async def send_text(self, text: str) -> None:
            sent.append(text)

    async def send() -> None:
        task = asyncio.create_task(box.send_all(Socket()))  # type: ignore[arg-type]
        await box.flushed()
        task.cancel()

    asyncio.run(send())
    assert sent == ["b", "c"]
    for _ in range(QUEUE_MESSAGES + 1):
        box.put("x")
    assert box.full.is_set()


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    stack = FakeStack(reply_s=600.0)
    async with serving(stack) as server:
        socket = await websockets.connect(
            f"{server.ws}/v1/realtime", max_queue=1, ping_interval=None, compression=None
        )
        await socket.recv()
        stack.calls[0].client.respond()
        async with asyncio.timeout(20):
            while server.gateway.live:
                server.gateway.pacer._tick()  # faster than real time
                await asyncio.sleep(0)
        assert server.gateway.metrics.slow_clients._value.get() == 1
        socket.transport.abort()
    assert stack.calls[0].ended == "transport_lost"


async def test_oversized_messages_end_only_their_own_call() -> None:
    stack = FakeStack()
    async with (
        serving(stack, max_message_bytes=5_000) as server,
        websockets.connect(f"{server.ws}/v1/realtime") as bad,
        websockets.connect(f"{server.ws}/v1/realtime") as good,
    ):
        await bad.recv()
        for kind in ("session.created", "conversation.created"):
            assert json.loads(await good.recv())["type"] == kind
        big = base64.b64encode(bytes(9_000)).decode()
        await bad.send(json.dumps({"type": "input_audio_buffer.append", "audio": big}))
        await bad.wait_closed()
        assert bad.close_code == 1009
        await good.send(json.dumps({"type": "response.create"}))
        assert json.loads(await good.recv())["type"] == "response.created"


async def test_agents_are_chosen_by_name_and_unknown_ones_refused() -> None:
    stack = FakeStack()
    async with serving(stack) as server:
        for query in ("?agent=other", "?model=other", "?model=gpt-realtime", ""):
            async with websockets.connect(f"{server.ws}/v1/realtime{query}") as socket:
                await socket.recv()
        async with websockets.connect(f"{server.ws}/v1/realtime?agent=nobody") as socket:
            error = json.loads(await socket.recv())
            assert "nobody" in error["error"]["message"]
            await socket.wait_closed()
            assert socket.close_code == 1008
    assert [call.agent for call in stack.calls] == ["other", "other", "default", "default"]


async def test_a_hundred_aborted_connections_leave_nothing() -> None:
    stack = FakeStack(greeting="Hello there.")
    async with serving(stack, max_calls=200) as server:
        for n in range(100):
            socket = await websockets.connect(f"{server.ws}/v1/realtime")
            if n % 2:
                await socket.recv()
            socket.transport.abort()
        async with asyncio.timeout(10):
            while server.gateway.live:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(server.gateway.pacer) == 0
        async with httpx.AsyncClient() as client:
            text = (await client.get(f"{server.url}/metrics")).text
        assert 'voice_agent_calls_live{transport="realtime"} 0.0' in text
        assert "voice_agent_calls_ended_total" in text
    assert all(call.ended is not None for call in stack.calls)


@pytest.mark.parametrize("moment", ["open", "run", "tick"])
async def test_a_fault_of_ours_is_told_and_closes_cleanly(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack = FakeStack()

    def fail(*args: object) -> None:
        raise ZeroDivisionError("ours")

    async def fail_later() -> None:
        fail()

    if moment == "open":
        stack.open_call = fail  # type: ignore[method-assign,assignment]
    elif moment == "run":
        monkeypatch.setattr("tests.support.fake_call.FakeCall.run", lambda self: fail_later())
    else:
        monkeypatch.setattr("tests.support.fake_call.FakeCall.tick", fail)
    async with serving(stack) as server:
        async with websockets.connect(f"{server.ws}/v1/realtime") as socket:
            first = json.loads(await socket.recv())
            assert first["type"] == ("error" if moment == "open" else "session.created")
            await socket.wait_closed()
            assert socket.close_code == 1011
        assert server.gateway.admission.active == 0
        assert len(server.gateway.pacer) == 0
