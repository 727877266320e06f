"""A recorded call again: the same inputs at the same times on a virtual clock, no models.

Model outputs are looked up by what was asked for. While the call decides as it did, each is found
exactly and arrives when it did; once code decides otherwise, the nearest answer stands in, as long
after the question as it took then, and is counted (`Replayed.guessed`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import signature
from pathlib import Path
from typing import Any, TypeAlias, cast, get_type_hints

from pydantic import TypeAdapter

from voice_agent.agent import Call
from voice_agent.agent_file import AgentFile, AgentShelf
from voice_agent.early import EarlyLimits
from voice_agent.errors import UsageError
from voice_agent.events import EndReason, Event
from voice_agent.plain_text import PlainChat, PlainTokenizer
from voice_agent.shedding import Load
from voice_agent.smart_turn import SmartTurn
from voice_agent.stack import Stack
from voice_agent.vad import VadService

from .answers import Answers
from .record import CONTROLS, SETTINGS
from .stages import (
    ThenLoad,
    ThenRecognizer,
    ThenSmartTurn,
    ThenSpeaker,
    ThenThinker,
    ThenToolbox,
    ThenVad,
)
from .tape import Head, Recorded, Taken
from .taping import taken_of
from .virtual_loop import VirtualLoop, run_virtual

PLAIN_CONTEXT = 1 << 20  # characters; a replay's history is never full

SAME_STEP_S = 1e-5

Move: TypeAlias = Callable[[], object]


@dataclass(slots=True)
class Replayed:
    """What the call did this time. guessed: questions that were not asked then."""

    decisions: list[Taken] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    guessed: int = 0
    reason: EndReason | None = None


def replay(recorded: Recorded) -> Replayed:
    """Blocking; needs no model, and milliseconds for a second of the call."""
    loop = VirtualLoop()
    return run_virtual(_replay(Answers(recorded, loop)), loop)


async def _replay(answers: Answers) -> Replayed:
    tape, out = answers.tape, Replayed()

    def listen(event: Event) -> None:
        out.events.append(event)
        taken = taken_of(event, round(answers.now(), 6))
        if taken is not None and not (tape.cut and taken.at_s >= tape.ended_s):
            out.decisions.append(taken)

    stack = _stack(tape.head, answers)
    await stack.start()
    answers.zero_s = answers.loop.now()
    call = stack.open_call(None, listen, tape.head.lead_ms)
    await answers.until(tape.run_at_s)
    life = asyncio.create_task(call.run())
    await asyncio.sleep(0)
    for at_s, move in sorted(_moves(answers, call), key=lambda move: move[0]):
        if at_s > answers.now() + SAME_STEP_S:  # what happened at one time happens in one step
            await answers.until(at_s)
        if life.done():
            break
        move()
    await answers.until(tape.ended_s)
    known = tape.reason in set(EndReason)
    call.hang_up(EndReason(tape.reason) if known else EndReason.CALLER_HUNG_UP)
    out.reason = await life
    await stack.close()
    out.guessed = answers.guessed
    return out


def _moves(answers: Answers, call: Call) -> Iterator[tuple[float, Move]]:
    """Everything the transport and client did, with its time."""
    tape = answers.tape

    def hear(k: int) -> Move:
        def move() -> None:
            answers.n_frames += 1
            call.hear(answers.recorded.frame(k))

        return move

    yield from ((at_s, hear(k)) for k, at_s in enumerate(tape.frame_times))
    yield from ((at_s, call.tick) for at_s in tape.tick_times)
    for control in tape.controls:
        yield control.at_s, _control(call, control.name, control.args, control.kwargs)


def _control(call: Call, name: str, args: list[Any], kwargs: dict[str, Any]) -> Move:
    asked_of = call if name in CONTROLS else call.client
    if name in SETTINGS:
        return lambda: setattr(asked_of, name, args[0])
    control = getattr(asked_of, name)
    given = signature(control).bind(*args, **kwargs).arguments
    told = {key: TypeAdapter(_kind(control, key)).validate_python(v) for key, v in given.items()}

    def act() -> None:
        with suppress(UsageError):  # what was refused then is refused again
            asked = control(**told)
            if asyncio.iscoroutine(asked):
                call.spawn(asked)

    return act


def _kind(control: Callable[..., Any], argument: str) -> Any:
    """What an argument was, by its annotation: the tape has it as JSON does."""
    return get_type_hints(control)[argument]


class _Shelf(AgentShelf):
    def __init__(self, file: AgentFile) -> None:
        super().__init__(Path())
        self._file = file

    def get(self, name: str) -> tuple[AgentFile, None]:
        return self._file, None


def _stack(head: Head, answers: Answers) -> Stack:
    """A stack whose stages are the tape."""
    file = AgentFile(**head.agent)
    speaker = ThenSpeaker(answers)
    smart_turn = cast(SmartTurn, ThenSmartTurn(answers)) if head.smart_turn else None
    stack = Stack(
        clock=answers.loop,
        vad=cast(VadService, ThenVad(answers)),
        smart_turn=smart_turn,
        recognizer=ThenRecognizer(answers),
        thinker=ThenThinker(answers),
        chat=PlainChat(),
        tokenizer=PlainTokenizer(),
        speakers={head.voice: speaker, "replay": speaker},
        default_voice="replay",
        shelf=_Shelf(file),
        names=[file.name],
        max_context=PLAIN_CONTEXT,
        context_unit="characters",
        target_s=head.target_s,
        answer_within_s=head.answer_within_s,
        voice_cache_s=0.0,
        models=head.models,
        toolbox=ThenToolbox(answers),
        announcement=head.announcement,
        early=EarlyLimits(**head.early),  # type: ignore[arg-type]
    )
    stack.early.load = cast(Load, ThenLoad(answers))
    return stack
