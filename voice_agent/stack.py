"""Everything that is loaded once and shared by all calls: models, services, agents.

`voice_agent.loading` builds it. `start` makes what the first caller must not wait for (greetings,
the agents' prompts in the KV cache); `ready` is true only after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from engine.client import Engine
from engine.histogram import HistogramSnapshot
from engine.sampling import SamplingParams

from . import gauges
from .agent import Call
from .agent_file import AgentFile, AgentShelf
from .choose import TARGET_CPU_MS
from .clauses import ClauseSplitter
from .clock import Clock
from .context import Chat, Conversation, Decoder
from .endpointing import TurnTaking
from .errors import CapacityError, UsageError
from .events import Event
from .reply import Speaker
from .scope import CancelScope
from .smart_turn import SmartTurn
from .stt.base import Recognizer
from .think import Thinker
from .tts.base import AudioPiece, Clause
from .tts.service import VoiceService
from .vad import VadService

log = logging.getLogger(__name__)

Progress = Callable[[str, float | None], None]
"""(stage, share done or None)."""

RECOVERY = "Sorry, I didn't catch that. Could you say it again?"
ANSWER_WITHIN_S, GPU_ANSWER_WITHIN_S = 5.0, 3.0
"""From commit to first sound on a CPU and on a GPU; past it the caller is told."""
TARGET_S = TARGET_CPU_MS / 1000.0


@dataclass(frozen=True, slots=True)
class FixedSpeech:
    """Words of ours. clauses: their sound, made at start; None: made when they are said."""

    text: str
    ids: tuple[int, ...]
    clauses: tuple[tuple[Clause, tuple[AudioPiece, ...]], ...] | None = None


@dataclass(frozen=True, slots=True)
class AgentRuntime:
    """An agent file resolved against what is loaded."""

    file: AgentFile
    turn_taking: TurnTaking
    speaker: Speaker
    splitter: Callable[[], ClauseSplitter]
    sampling: SamplingParams
    recovery: FixedSpeech
    greeting: FixedSpeech | None
    goodbye: FixedSpeech | None


@dataclass(frozen=True, slots=True)
class Choice:
    """What `up` prints: which model does a job, on what device, and why."""

    job: str
    model: str
    device: str
    why: str


class Stack:
    """Owns the loaded parts. Tests build one from fakes through the constructor."""

    def __init__(
        self,
        *,
        clock: Clock,
        vad: VadService,
        smart_turn: SmartTurn | None,
        recognizer: Recognizer,
        thinker: Thinker,
        chat: Chat,
        tokenizer: Decoder,
        speakers: Mapping[str, Speaker],
        default_voice: str,
        shelf: AgentShelf,
        names: list[str],
        max_context: int,
        context_unit: str = "tokens",
        target_s: float = TARGET_S,
        answer_within_s: float = ANSWER_WITHIN_S,
        log_content: bool = False,
        engine: Engine | None = None,
        engine_model: str = "",
        voices: VoiceService | None = None,
        choices: tuple[Choice, ...] = (),
        closers: tuple[Callable[[], None], ...] = (),
    ) -> None:
        self.clock = clock
        self.vad = vad
        self.smart_turn = smart_turn
        self.recognizer = recognizer
        self.thinker = thinker
        self.chat = chat
        self.tokenizer = tokenizer
        self.target_s = target_s
        self.answer_within_s = answer_within_s
        self.log_content = log_content
        self.engine = engine
        self.engine_model = engine_model
        self.voices = voices
        self.choices = choices
        self.ready = False
        self._speakers = dict(speakers)
        self._default_voice = default_voice
        self._shelf = shelf
        self._names = names
        self._max_context = max_context
        self._context_unit = context_unit
        self._runtimes: dict[str, AgentRuntime] = {}
        self._closers = closers
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def max_prompt_tokens(self) -> int:
        """Ids of the tokenizer that a prompt may have, room for a reply set aside."""
        return self._max_context * 3 // 4

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start the engine, make every agent's fixed speech, prefill and pin its prompt."""
        if self.engine is not None:
            self.engine.start()
        for name in self._names:
            runtime, problem = self._runtime(name)
            if problem is not None:
                raise problem
            self._runtimes[name] = await self._prepared(runtime)
        self.ready = True

    async def close(self) -> None:
        self.ready = False
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self.thinker.close()
        if self.voices is not None:
            await self.voices.close()
        await asyncio.to_thread(lambda: [close() for close in self._closers])

    # ------------------------------------------------------------ calls

    def agent_names(self) -> list[str]:
        """The default agent first."""
        return list(self._names)

    def open_call(
        self,
        agent_name: str | None,
        on_event: Callable[[Event], None],
        lead_ms: int = 0,
    ) -> Call:
        """A new call with an agent (None: the default). Raises UsageError for an unknown one."""
        if not self.ready:
            raise CapacityError("the server is still starting; try again shortly", code="VA201")
        name = agent_name or self._names[0]
        runtime, problem = self._runtime(name)
        if problem is not None:
            log.warning("agent %s keeps its last good version: %s", name, problem)
        return Call(self, runtime, on_event, lead_ms=lead_ms)

    def _runtime(self, name: str) -> tuple[AgentRuntime, UsageError | None]:
        """The agent as its file stands now; prepared if it has not changed since."""
        file, problem = self._shelf.get(name)
        known = self._runtimes.get(name)
        if known is not None and known.file is file:
            return known, problem
        self.check_instructions(file.instructions)
        runtime = AgentRuntime(
            file=file,
            turn_taking=file.turn_taking.resolve(),
            speaker=self.speaker(file.voice),
            splitter=partial(ClauseSplitter, dict(file.lexicon)),
            sampling=_sampling(file),
            recovery=self._fixed(RECOVERY),
            greeting=self._fixed(file.greeting) if file.greeting and file.speaks_first else None,
            goodbye=self._fixed(file.goodbye) if file.goodbye else None,
        )
        if self.ready:  # an edited file: usable at once, prepared in the background
            self._runtimes[name] = runtime
            job = asyncio.get_running_loop().create_task(self._prepare_again(name, runtime))
            self._jobs.add(job)
            job.add_done_callback(self._jobs.discard)
        return runtime, problem

    async def _prepare_again(self, name: str, runtime: AgentRuntime) -> None:
        try:
            prepared = await self._prepared(runtime)
        except Exception:
            log.exception("agent %s is used unprepared", name)
            return
        if self._runtimes.get(name) is runtime:
            self._runtimes[name] = prepared

    def _fixed(self, text: str) -> FixedSpeech:
        return FixedSpeech(text, tuple(self.tokenizer.encode(text)))

    async def _prepared(self, runtime: AgentRuntime) -> AgentRuntime:
        """The same agent with its fixed speech made and its prompt in the KV cache."""
        voiced = [
            None if speech is None else await self._voice(speech, runtime)
            for speech in (runtime.recovery, runtime.greeting, runtime.goodbye)
        ]
        recovery, greeting, goodbye = voiced
        assert recovery is not None
        history = self.conversation(runtime.file.instructions)
        if greeting is not None:
            history.add_assistant(greeting.ids, greeting.text, len(greeting.text))
        await self.thinker.prepare(
            history.prefix(), agent=runtime.file.name, tenant=runtime.file.tenant
        )
        return AgentRuntime(
            file=runtime.file,
            turn_taking=runtime.turn_taking,
            speaker=runtime.speaker,
            splitter=runtime.splitter,
            sampling=runtime.sampling,
            recovery=recovery,
            greeting=greeting,
            goodbye=goodbye,
        )

    async def _voice(self, speech: FixedSpeech, runtime: AgentRuntime) -> FixedSpeech:
        splitter = runtime.splitter()
        clauses = [*splitter.push(speech.text), *splitter.finish()]
        scope = CancelScope("fixed speech")
        made: list[tuple[Clause, tuple[AudioPiece, ...]]] = []
        for clause in clauses:
            pieces: list[AudioPiece] = []
            if clause.words:
                stream = runtime.speaker.speak(
                    clause, speed=runtime.file.speed, deadline_s=self.clock.now, scope=scope
                )
                pieces = [piece async for piece in stream]
            made.append((clause, tuple(pieces)))
        return FixedSpeech(speech.text, speech.ids, tuple(made))

    # ------------------------------------------------------------ lookups

    def conversation(self, instructions: str) -> Conversation:
        """An empty history with these instructions."""
        return Conversation(self.chat, self.tokenizer, instructions, self.max_prompt_tokens)

    def speaker(self, voice: str) -> Speaker:
        """A loaded voice by name; "" is the default. Raises UsageError listing the names."""
        name = voice or self._default_voice
        if name not in self._speakers:
            known = ", ".join(sorted(self._speakers))
            raise UsageError(f"there is no voice {voice!r} here; loaded: {known}", code="VA114")
        return self._speakers[name]

    def check_instructions(self, text: str) -> None:
        """Raises UsageError when instructions would take over half of the model's context."""
        limit = self.max_prompt_tokens // 2
        n = len(self.tokenizer.encode(text))
        if n > limit:
            raise UsageError(
                f"the instructions have {n} {self._context_unit}; at most {limit} leave room for a "
                "conversation with this model: shorten them or choose a model with a longer "
                "context",
                code="VA110",
            )

    def gauges(self) -> dict[str, float]:
        """Numbers of the engine and of each stage's queue, for /metrics."""
        return gauges.collect(self)

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        """The engine's distributions, for /metrics: metric name -> class of request -> values."""
        if self.engine is None:
            return {}
        return {f"engine_{name}": kinds for name, kinds in self.engine.histograms().items()}


def _sampling(file: AgentFile) -> SamplingParams:
    s = file.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        top_k=s.top_k,
        min_p=s.min_p,
        seed=s.seed,
        max_tokens=file.limits.max_reply_tokens,
    )
