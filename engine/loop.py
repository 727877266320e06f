"""The engine thread's work: inbox, plan, run, reap.

`EngineLoop.step(now)` is a plain method; `EngineThread` (thread.py) only calls it, so simulations
and property tests run the real loop in virtual time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from engine.clock import Clock
from engine.counters import LoopCounters
from engine.errors import EngineError, InternalError
from engine.inbox import Commit, Edit, Inbox, Revise, Truncate
from engine.inputs import Row, Sampled, SampleRow
from engine.kvcache import KvCache
from engine.launch import StepRunner
from engine.plan import StepPlan
from engine.request import FinishReason, Output, Request, Sink, State, TextOut
from engine.scheduler import Scheduler

log = logging.getLogger(__name__)


class EngineLoop:
    """Everything but the thread. All methods but the posting ones run on the engine thread."""

    def __init__(
        self,
        runner: StepRunner,
        kv: KvCache,
        scheduler: Scheduler,
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
        self._eos_ids = eos_ids
        self._clock = clock
        self._on_finished = on_finished
        self._inbox = Inbox()
        self._wake = threading.Condition()
        self._outbox: list[tuple[Sink, Output]] = []
        self._idle_checked = True
        self._reaped_s = 0.0  # when the step's results were there

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
        return self.scheduler.has_work

    # one step

    def step(self, now: float) -> bool:
        """Take the inbox, plan, run, reap, deliver. False if no row could run."""
        self._take_inbox(now)
        ran = False
        if self.has_work:
            self._idle_checked = False
            plan = self.scheduler.plan(now)
            ran = bool(plan.tokens)
            failed, self.scheduler.failed = self.scheduler.failed, []
            for request, error in failed:
                self._end(request, FinishReason.ERROR, now, error=error)
            if ran:
                self._execute(plan, now)
        if not self.has_work and not self._idle_checked:
            self._check_idle()
        self._deliver()
        return ran

    def _take_inbox(self, now: float) -> None:
        with self._wake:
            inbox, self._inbox = self._inbox, Inbox()
        for request in inbox.submits:
            self.scheduler.add(request, now)
            if not (request.held or request.prefill_only):
                self._prepare(request, now)
        for edit in inbox.edits:
            self._edit(edit, now)
        for request_id, deadline_s in inbox.deadlines.items():
            self.scheduler.set_deadline(request_id, deadline_s)
        for request_id, asked_at in inbox.aborts.items():
            aborted = self.scheduler.requests.get(request_id)
            if aborted is not None:
                self._end(aborted, FinishReason.ABORTED, now)
                self.counters.note_abort(self.counters.steps - asked_at, self.kv.pool.n_fenced)
        for call in inbox.calls_over:
            for request in [r for r in self.scheduler.requests.values() if r.scope.call == call]:
                self._end(request, FinishReason.ABORTED, now)
            self.kv.prefix.forget(call)
            if self.scheduler.speculation is not None:
                self.scheduler.speculation.forget_call(call)
        for key in inbox.unpins:
            self.kv.pins.remove(key)

    def _prepare(self, request: Request, now: float) -> None:
        """Make ready for tokens what needs the settings."""
        try:
            request.rule_out({*self._eos_ids, *request.params.stop_token_ids})
            request.text = self._make_text(request)
        except Exception as error:
            log.exception("request refused by its text", extra={"request": request.id})
            self._end(request, FinishReason.ERROR, now, error=error)

    def _edit(self, edit: Edit, now: float) -> None:
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
                    self._end(request, FinishReason.ABORTED, now)
                else:
                    self.kv.truncate(
                        edit.scope, edit.tokens, edit.keep, edit.pin_key, edit.pin_ttl_s, now
                    )
            case _:  # it has ended meanwhile
                pass

    def _execute(self, plan: StepPlan, now: float) -> None:
        planned = [(self.scheduler.requests[i], n) for i, n in plan.tokens.items()]
        busy = [(request, n) for request, n in planned if n > 0]
        started = self._clock.now()
        speculation = self.scheduler.speculation
        guesses = speculation.propose([r for r, _ in busy], plan.guesses) if speculation else {}
        launched = self._clock.now()
        step = self.kv.pool.launch()
        try:
            for copy in plan.copies:
                self._runner.copy_block(copy.src, copy.dst, copy.n_rows)
            rows = [_row(r, n, guesses.get(r.id, ())) for r, n in busy] + list(plan.padding)
            results = self._runner.launch(rows).read() if rows else []
            if len(results) != len(rows):
                raise InternalError(f"{len(rows)} rows went in, {len(results)} came out")
        except Exception as error:
            log.exception("step failed", extra={"step": step, "rows": len(busy)})
            self._fail_running(error, now)
            return
        finally:
            self.kv.copied(plan.copies)
            self.kv.pool.retire(step)
        self._reaped_s = self._clock.now()
        n_tokens = self.scheduler.weight(rows)
        took_ms = (self._reaped_s - started) * 1000.0
        self.counters.note_step(took_ms, self.scheduler.floor_ms(n_tokens))
        self.scheduler.note_step(n_tokens, (self._reaped_s - launched) * 1000.0)
        for (request, n), sampled in zip(busy, results[: len(busy)], strict=True):
            self._reap(request, n, sampled, now, guesses.get(request.id, ()))
            if request.id in plan.guesses:
                self.scheduler.return_spare(request)
        for request, n in planned:
            if n == 0:
                self._reap(request, 0, None, now)
        slots, used = self.scheduler.slots()
        self.counters.kv_slots += slots
        self.counters.kv_slots_used += used

    def _reap(
        self,
        request: Request,
        n: int,
        sampled: Sampled | None,
        now: float,
        guess: tuple[int, ...] = (),
    ) -> None:
        """Apply one row's result; whatever goes wrong ends this request only."""
        try:
            self.scheduler.advance(request, n)
            if sampled is not None:
                self._accept_token(request, sampled, now)
                if guess:
                    self._accept_guesses(request, sampled, guess, now)
            elif request.prefill_only and request.remaining == 0:
                self._end(request, FinishReason.STOP, now)
        except Exception as error:
            log.exception("request failed", extra={"request": request.id})
            self._end(request, FinishReason.ERROR, now, error=error)

    def _accept_guesses(
        self, request: Request, sampled: Sampled, guess: tuple[int, ...], now: float
    ) -> None:
        """Take the right guesses: those whose rows hold what was then chosen.

        What was computed beyond a wrong guess, or beyond the end, is neither cached nor counted:
        `computed` does not reach it, and later tokens overwrite it.
        """
        chosen, n_right = sampled.token, 0
        for guessed, after in zip(guess, sampled.beyond, strict=True):
            if guessed != chosen or request.state is State.FINISHED:
                break
            n_right += 1
            self.scheduler.advance(request, 1)
            self._accept_token(request, Sampled(after), now)
            chosen = after
        assert self.scheduler.speculation is not None
        self.scheduler.speculation.note(request, n_right, len(guess))

    def _accept_token(self, request: Request, sampled: Sampled, now: float) -> None:
        params, token, text = request.params, sampled.token, request.text
        if text is None or request.remaining:
            raise InternalError("a token came back from a row that asked for none")
        if request.constraint is not None:
            request.constraint.check()
        ends = token in self._eos_ids and not params.ignore_eos
        if ends or token in params.stop_token_ids:
            self.counters.grammar_valid += ends and request.constraint is not None
            self._end(request, FinishReason.STOP, now, tail=text.finish())
            return
        piece = text.push(token)
        request.tokens.append(token)
        self.counters.tokens += 1
        self.counters.note_output(request, piece, self._reaped_s)
        out = Output(piece, (token,), (), request.cached_tokens)
        if params.logprobs is not None and sampled.logprob is not None:
            out = replace(out, logprobs=(sampled.logprob,), top=(sampled.top,))
        if text.stopped:
            self._end(request, FinishReason.STOP, now, last=out)
        elif request.n_output >= request.max_new:
            self._end(request, FinishReason.LENGTH, now, tail=text.finish(), last=out)
        else:
            if request.constraint is not None:
                request.constraint.push(token)
            self._emit(request, out)

    # ends

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        now: float,
        *,
        tail: str = "",
        last: Output | None = None,
        error: Exception | None = None,
    ) -> None:
        request.error = error
        keep = reason is not FinishReason.ERROR
        try:
            if not self.scheduler.finish(request, reason, now, keep=keep):
                return
        except Exception:  # our bug, and blocks may be lost; its reader must hear of the end
            self.counters.integrity_failures += 1
            log.exception("release failed", extra={"request": request.id})
        if self.scheduler.speculation is not None:
            self.scheduler.speculation.forget(request)
        self.counters.finished += 1
        self.counters.aborted += reason is FinishReason.ABORTED
        self.counters.failed += reason is FinishReason.ERROR
        self.counters.grammar_finished += (
            request.constraint is not None and reason is not FinishReason.ABORTED
        )
        if error is not None and not isinstance(error, EngineError):
            request.error = error = InternalError(f"{type(error).__name__}: {error}")
        out = last or Output("", (), (), request.cached_tokens)
        self._emit(request, replace(out, text=out.text + tail, finish=reason, error=error))
        self._on_finished(request)

    def _fail_running(self, error: Exception, now: float) -> None:
        """The forward failed: no block it wrote can be trusted, so no running request goes on."""
        for request in list(self.scheduler.running()):
            self._end(request, FinishReason.ERROR, now, error=error)

    def fail_all(self, error: Exception, now: float) -> None:
        """End every request with an error, after a fault that none of them can be blamed for."""
        for request in list(self.scheduler.requests.values()):
            self._end(request, FinishReason.ERROR, now, error=error)
        self._deliver()

    def abort_all(self, now: float) -> None:
        """End every request; the last thing the engine thread does."""
        self._take_inbox(now)
        for request in list(self.scheduler.requests.values()):
            self._end(request, FinishReason.ABORTED, now)
        self._deliver()

    # delivery

    def _emit(self, request: Request, output: Output) -> None:
        if request.sink is not None:
            self._outbox.append((request.sink, output))

    def _deliver(self) -> None:
        """One wake-up per event loop and step, however many requests and tokens."""
        if not self._outbox:
            return
        batches: dict[asyncio.AbstractEventLoop, list[tuple[Sink, Output]]] = {}
        for sink, output in self._outbox:
            batches.setdefault(sink.loop, []).append((sink, output))
        self._outbox = []
        for loop, batch in batches.items():
            try:
                loop.call_soon_threadsafe(_hand_over, batch)
                self.counters.wakeups += 1
            except RuntimeError:  # the event loop was closed: nobody is left to listen
                gone = {id(sink) for sink, _ in batch}
                for request in list(self.scheduler.requests.values()):
                    if id(request.sink) in gone:
                        request.sink = None
                        self._end(request, FinishReason.ABORTED, self._clock.now())

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


def _row(request: Request, n: int, guess: tuple[int, ...] = ()) -> Row:
    start, end = request.computed, request.computed + n
    assert request.table is not None
    sample = None
    if end == request.known and not request.prefill_only:
        sample = SampleRow(
            request.sampling,
            request.known,
            request.seed,
            request.tokens,
            request.n_prompt,
            request.counts,
            request.constraint,
        )
    ids = (*request.tokens[start:end], *guess)
    return Row(ids, start, tuple(request.table.blocks), sample, len(guess))


def _hand_over(batch: list[tuple[Sink, Output]]) -> None:
    for sink, output in batch:
        try:
            sink.accept(output)
        except Exception:  # one listener's fault must not lose the others' tokens
            log.exception("delivery failed")
