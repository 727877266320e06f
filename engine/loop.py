"""The engine thread's work: inbox, plan, launch, reap.

`EngineLoop.step(now)` is a plain method; `EngineThread` (thread.py) only calls it, so simulations
and property tests run the real loop in virtual time.

A runner that overlaps computes step N while N+1 is planned and launched; only then is N read
(engine/launch.py). A step is read before the next is planned where a row's next choice needs this
one's on the host: grammars, penalties, log probabilities, and all steps with speculation on.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable

from engine.clock import Clock
from engine.counters import LoopCounters
from engine.errors import InternalError
from engine.flight import Flight, board
from engine.inbox import Commit, Edit, Inbox, Revise, Truncate
from engine.kvcache import KvCache
from engine.launch import StepRunner
from engine.outbox import Outbox
from engine.plan import StepPlan
from engine.reap import Reaper
from engine.request import FinishReason, Request, State, TextOut
from engine.roster import Roster

log = logging.getLogger(__name__)


class EngineLoop:
    """Everything but the thread. All methods but the posting ones run on the engine thread."""

    def __init__(
        self,
        runner: StepRunner,
        kv: KvCache,
        scheduler: Roster,
        *,
        make_text: Callable[[Request], TextOut],
        eos_ids: frozenset[int],
        clock: Clock,
        on_finished: Callable[[Request], None],
    ) -> None:
        self.kv = kv
        self.scheduler = scheduler
        self.counters = LoopCounters()
        self._runner = runner
        self._make_text = make_text
        self._clock = clock
        self._inbox = Inbox()
        self._wake = threading.Condition()
        self._outbox = Outbox()
        self._reaper = Reaper(scheduler, self._outbox, self.counters, eos_ids, on_finished)
        self._flights: deque[Flight] = deque()  # launched and not read, at most two
        self._landed_s = 0.0  # when the latest results were there
        self._idle_checked = True

    # from any thread

    def post_submit(self, request: Request) -> None:
        with self._wake:
            self._inbox.submits.append(request)
            self._wake.notify()

    def post_edit(self, edit: Edit) -> None:
        with self._wake:
            self._inbox.edits.append(edit)
            self._wake.notify()

    def post_abort(self, request_id: int) -> None:
        with self._wake:
            self._inbox.aborts.setdefault(request_id, self.counters.steps)
            self._wake.notify()

    def post_call_over(self, call: str) -> None:
        with self._wake:
            self._inbox.calls_over.add(call)
            self._wake.notify()

    def post_deadline(self, request_id: int, deadline_s: float) -> None:
        with self._wake:
            self._inbox.deadlines[request_id] = deadline_s  # no wake-up: it can wait for a step

    def post_unpin(self, key: str) -> None:
        with self._wake:
            self._inbox.unpins.add(key)
            self._wake.notify()

    def wake(self) -> None:
        with self._wake:
            self._wake.notify()

    def wait(self, stop: Callable[[], bool]) -> None:
        """Sleep until there is something to do or `stop()` (after a `wake`)."""
        with self._wake:
            self._wake.wait_for(lambda: bool(self._inbox) or self.has_work or stop())

    @property
    def has_work(self) -> bool:
        return bool(self._flights) or self.scheduler.has_work

    # one step

    def step(self, now: float) -> bool:
        """Take the inbox, plan, launch, reap, deliver. False if nothing could run or be read."""
        before, launched = self.counters.steps, False
        self._take_inbox(now)
        if self.scheduler.has_work:
            self._idle_checked = False
            plan = self.scheduler.plan(self._free_s(now) if self._flights else now)
            if self.scheduler.failed:
                failed, self.scheduler.failed = self.scheduler.failed, []
                for request, error in failed:
                    self._reaper.end(request, FinishReason.ERROR, now, error=error)
            if plan.tokens:
                self._launch(plan)
                launched = True
        while self._flights and (len(self._flights) > launched or self._flights[0].at_once):
            self._land()
        if not self.has_work and not self._idle_checked:
            self._check_idle()
        self._deliver()
        return launched or self.counters.steps > before

    def _free_s(self, now: float) -> float:
        """When the step in flight ought to be over, so that the next one can begin."""
        flight = self._flights[-1]
        begun_s = max(flight.launched_s, self._landed_s)
        return max(now, begun_s + flight.plan.predicted_ms / 1000.0)

    def _take_inbox(self, now: float) -> None:
        with self._wake:
            if not self._inbox:
                return
            inbox, self._inbox = self._inbox, Inbox()
        for request in inbox.submits:
            self.scheduler.add(request, now)
            if not (request.held or request.prefill_only):
                self._prepare(request, now)
        for edit in inbox.edits:
            self._edit(edit, now)
        for request_id, deadline_s in inbox.deadlines.items():
            self.scheduler.set_deadline(request_id, deadline_s)
        cut = {edit.request_id for edit in inbox.edits if isinstance(edit, Truncate)}
        for request_id, asked_at in inbox.aborts.items():
            aborted = self.scheduler.requests.get(request_id)
            if aborted is not None:
                self._reaper.end(aborted, FinishReason.ABORTED, now)
            if aborted is not None or request_id in cut:
                self.counters.note_abort(self.counters.steps - asked_at, self.kv.pool.n_fenced)
        for call in inbox.calls_over:
            for request in [r for r in self.scheduler.requests.values() if r.scope.call == call]:
                self._reaper.end(request, FinishReason.ABORTED, now)
            self.kv.prefix.forget(call)
            if self.scheduler.speculation is not None:
                self.scheduler.speculation.forget_call(call)
        for key in inbox.unpins:
            self.kv.pins.remove(key)

    def _prepare(self, request: Request, now: float) -> None:
        """Make ready for tokens what needs the settings."""
        try:
            request.rule_out({*self._reaper.eos_ids, *request.params.stop_token_ids})
            request.text = self._make_text(request)
        except Exception as error:
            log.exception("request refused by its text", extra={"request": request.id})
            self._reaper.end(request, FinishReason.ERROR, now, error=error)

    def _edit(self, edit: Edit, now: float) -> None:
        request = self.scheduler.requests.get(edit.request_id)
        if (
            isinstance(edit, Revise)
            and request is not None
            and request.computed < request.launched >= edit.keep
        ):
            self._land_all()  # what is cut may be in flight
            request = self.scheduler.requests.get(edit.request_id)
        match edit:
            case Revise() if request is not None and request.held:
                self.scheduler.revise(request, edit.keep, edit.more, now)
            case Commit() if request is not None and request.held:
                request.commit(edit.params, edit.seed, edit.max_new, now, edit.deadline_s)
                self.scheduler.release_hold(request)
                self._prepare(request, now)
            case Truncate():
                if request is not None:
                    self.scheduler.cut(request, edit.keep)
                    self._reaper.end(request, FinishReason.ABORTED, now)
                else:
                    self.kv.truncate(
                        edit.scope, edit.tokens, edit.keep, edit.pin_key, edit.pin_ttl_s, now
                    )
            case _:  # it has ended meanwhile
                pass

    # flights

    def _launch(self, plan: StepPlan) -> None:
        """Send the planned step off. What fails here ends all running requests, as in `_land`."""
        scheduler, started_s = self.scheduler, self._clock.now()
        speculation = scheduler.speculation
        guesses: dict[int, tuple[int, ...]] = {}
        if speculation is not None:
            busy = [scheduler.requests[i] for i, n in plan.tokens.items() if n]
            guesses = speculation.propose(busy, plan.guesses)
        seats, rows = board(plan, scheduler.requests, guesses)
        rows.extend(plan.padding)
        at_once = (
            not (self._runner.overlaps and rows)
            or speculation is not None
            or any(request.reads_back for request, _, _, place in seats if place is not None)
        )
        flight = Flight(
            self.kv.pool.launch(), seats, rows, plan, guesses, started_s, self._clock.now(),
            scheduler.pace.weight(rows), at_once,
        )  # fmt: skip
        self._flights.append(flight)
        self.kv.launched(plan.copies)
        try:
            for copy in plan.copies:
                self._runner.copy_block(copy.src, copy.dst, copy.n_rows)
            if rows:
                flight.launched = self._runner.launch(rows)
        except Exception as error:
            self._fail_running(error, flight)
            return
        if not at_once:
            flight.leave_room()

    def _land(self) -> None:
        """Read the oldest step in flight and apply what it made."""
        flight = self._flights.popleft()
        try:
            results = flight.read()
        except Exception as error:
            self._close_flight(flight)
            self._fail_running(error, flight)
            return
        self._close_flight(flight)
        begun_s, self._landed_s = self._landed_s, self._clock.now()
        took_ms = (self._landed_s - max(begun_s, flight.started_s)) * 1000.0
        ran_ms = (self._landed_s - max(begun_s, flight.launched_s)) * 1000.0
        self.counters.note_step(took_ms, self.scheduler.pace.floor_ms(flight.weight))
        self.scheduler.pace.note(flight.weight, ran_ms)
        self._reaper.reap(flight, results, self._landed_s)
        slots, used = self.scheduler.slots()
        self.counters.kv_slots += slots
        self.counters.kv_slots_used += used

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    def _drop_flights(self) -> None:
        """Wait for the steps in flight, whose results nobody wants: they still write."""
        while self._flights:
            flight = self._flights.popleft()
            with contextlib.suppress(Exception):
                flight.read()
            self._close_flight(flight)

    def _close_flight(self, flight: Flight) -> None:
        self.kv.landed(flight.plan.copies)
        self.kv.pool.retire(flight.step)

    # faults and the end

    def _fail_running(self, error: Exception, flight: Flight) -> None:
        """A step failed: no block it wrote can be trusted, so no running request goes on."""
        extra = {"step": flight.step, "rows": len(flight.rows)}
        log.error("step failed", exc_info=error, extra=extra)
        self._drop_flights()
        for request in list(self.scheduler.running()):
            self._reaper.end(request, FinishReason.ERROR, self._clock.now(), error=error)

    def fail_all(self, error: Exception, now: float) -> None:
        """End every request with an error, after a fault that none of them can be blamed for."""
        self._drop_flights()
        for request in list(self.scheduler.requests.values()):
            self._reaper.end(request, FinishReason.ERROR, now, error=error)
        self._deliver()

    def abort_all(self, now: float) -> None:
        """End every request; the last thing the engine thread does."""
        self._take_inbox(now)
        self._drop_flights()
        for request in list(self.scheduler.requests.values()):
            self._reaper.end(request, FinishReason.ABORTED, now)
        self._deliver()

    def _deliver(self) -> None:
        wakeups, gone = self._outbox.deliver()
        self.counters.wakeups += wakeups
        if gone:
            for request in list(self.scheduler.requests.values()):
                if request.sink in gone:
                    request.sink = None
                    self._reaper.end(request, FinishReason.ABORTED, self._clock.now())

    # integrity

    def check(self) -> None:
        """Raise `InternalError` unless blocks, tree and live requests account for each other."""
        self.kv.check(list(self.scheduler.tables()))
        for request in self.scheduler.requests.values():
            if (request.table is not None) != (request.state is State.RUNNING):
                raise InternalError(f"request {request.id} is {request.state.value} with blocks")

    def _check_idle(self) -> None:
        self._idle_checked = True
        try:
            self.check()
        except InternalError:
            self.counters.integrity_failures += 1
            log.exception("KV blocks do not add up")
