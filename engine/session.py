"""One call's context in the engine: it grows while the caller speaks and is cut where they heard.

    extend, rollback    the prompt changes; what stays of it is not computed again
    follow              the context becomes what it should be, by whichever of these it takes
    commit              it is final: a reply is generated
    truncate            the context ends at the last token heard, and so does what is cached of it
    abort               whatever runs ends; the context stays
    close               the call is over: nothing of it is kept

While a prompt is open the engine computes all but its last token in idle time, behind everybody
who waits for a reply. All methods belong to the thread of the event loop.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import UsageError
from engine.generation import Generation
from engine.prefix import Scope, common_prefix
from engine.sampling import SamplingParams

if TYPE_CHECKING:
    from engine.client import Engine


class Session:
    """Made by `Engine.session`. The context is private to the session's call."""

    def __init__(self, engine: Engine, tenant: str, call: str) -> None:
        self.call = call
        self._engine = engine
        self._scope = Scope(tenant, call)
        self._pin_key = f"call:{call}"
        self._tokens: list[int] = []
        self._run: Generation | None = None
        self._replying = False
        self._over = weakref.finalize(self, engine.forget, call)
        self._over.atexit = False

    @property
    def tokens(self) -> list[int]:
        """The context's token ids: what was extended, and the reply as far as it is known."""
        reply = self._run.token_ids if self._replying and self._run is not None else []
        return [*self._tokens, *reply]

    def extend(self, token_ids: Sequence[int]) -> None:
        """Append to the prompt. Raises `UsageError` while a reply is generated."""
        self._settle()
        self._revise(len(self._tokens), token_ids)

    def rollback(self, n_tokens: int, token_ids: Sequence[int] = ()) -> None:
        """Keep the first `n_tokens` of the prompt and go on with `token_ids`."""
        self._settle()
        if not 0 <= n_tokens <= len(self._tokens):
            raise UsageError(f"the context has {len(self._tokens)} tokens, not {n_tokens}")
        self._revise(n_tokens, token_ids)

    def follow(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Make the context `token_ids`; nothing happens if it is that already.

        An open prompt is rolled back to the first difference, an ended or aborted reply is cut
        there. Returns (prompt tokens that are new, open prompt's tokens that were taken back).
        Raises `UsageError` while a reply is generated.
        """
        self._check()
        tokens = self.tokens
        keep = common_prefix(tokens, token_ids)
        is_open = self._run is not None and not self._replying
        if keep < len(tokens) and not is_open:
            self.truncate(keep)
        self._settle()
        n_new, n_back = len(token_ids) - keep, len(self._tokens) - keep
        if n_new or n_back:
            self._revise(keep, token_ids[keep:])
        return n_new, n_back

    def commit(self, params: SamplingParams, *, deadline_s: float | None = None) -> Generation:
        """Generate the reply to the prompt as it stands. Raises like `Engine.submit`."""
        self._settle()
        engine, prompt = self._engine, tuple(self._tokens)
        held = self._run
        if held is not None and params.grammar is not None:
            held.abort()  # a grammar is compiled first, and then the prompt is a cached one
            held = None
        if held is None:
            run = engine.submit(
                prompt,
                params,
                tenant=self._scope.tenant,
                call=self.call,
                deadline_s=deadline_s,
                pin_key=self._pin_key,
            )
        else:
            engine.commit_held(held, prompt, params, deadline_s)
            held.committed(len(prompt))
            run = held
        self._run, self._replying = run, True
        return run

    def truncate(self, n_tokens: int) -> None:
        """Cut the context after `n_tokens`: what comes later was not heard. Ends what runs."""
        tokens, run = self.tokens, self._run
        if not 0 <= n_tokens <= len(tokens):
            raise UsageError(f"the context has {len(tokens)} tokens, not {n_tokens}")
        request_id = run.id if run is not None else 0
        self._engine.truncate(request_id, self._scope, tokens, n_tokens, self._pin_key)
        if run is not None:
            run.abort()
        self._tokens, self._run, self._replying = tokens[:n_tokens], None, False

    def abort(self) -> None:
        """End the prefill or the generation; what the reply said so far stays in the context."""
        self._tokens, run = self.tokens, self._run
        self._run, self._replying = None, False
        if run is not None:
            run.abort()

    def close(self) -> None:
        """The call is over. Idempotent; nothing else may follow."""
        self.abort()
        self._over()

    def _check(self) -> None:
        if not self._over.alive:
            raise UsageError("the session is closed")
        if self._replying and self._run is not None and self._run.finish is None:
            raise UsageError("a reply is being generated: wait for it, abort or truncate it")

    def _settle(self) -> None:
        """Take over the reply that has ended, or note that the prompt's prefill failed."""
        self._check()
        if self._run is not None and self._run.finish is not None:
            self._tokens, self._replying, self._run = self.tokens, False, None

    def _revise(self, keep: int, more: Sequence[int]) -> None:
        engine, run = self._engine, self._run
        prompt = (*self._tokens[:keep], *more)
        engine.check_prompt(prompt)
        if not prompt:
            self.abort()
        elif run is None:
            self._run = engine.hold(prompt, self._scope, self._pin_key)
        else:
            engine.revise_held(run, keep, more)
        self._tokens = list(prompt)
