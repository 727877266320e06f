"""Everything that is loaded once and shared by all calls: models, services, agents.

`voice_agent.loading` builds it. `start` makes what the first caller must not wait for (greetings,
the agents' prompts in the KV cache); `ready` is true only after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

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
from .early import EarlyLimits, EarlyWork
from .endpointing import TurnTaking
from .errors import CapacityError, UsageError
from .events import Event
from .forecast import Forecast, Processors
from .outlook import Outlook
from .reply import Speaker
from .shedding import Load, Shed
from .smart_turn import SmartTurn
from .stt.base import Recognizer
from .stt.noise import NoiseWatch
from .think import EngineThinker, Thinker
from .tidying import tidy
from .tools.base import Tool
from .tools.toolbox import Toolbox
from .tracing import Tracing
from .tts.cache import CachedSpeaker, ClauseCache, Key
from .tts.service import VoiceService
from .vad import VadService
from .vitals import Vitals, signs, watched

if TYPE_CHECKING:
    from .history.history import History
    from .library.call import Call as Handle

log = logging.getLogger(__name__)

Progress = Callable[[str, float | None], None]
"""(stage, share done or None)."""

VOICE_CACHE_S = 300.0
ANSWER_WITHIN_S, GPU_ANSWER_WITHIN_S = 5.0, 3.0
"""From commit to first sound on a CPU and on a GPU; past it the caller is told."""
TARGET_S = TARGET_CPU_MS / 1000.0


@dataclass(frozen=True, slots=True)
class FixedSpeech:
    """Words of ours, and their tokens."""

    text: str
    ids: tuple[int, ...]


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
    idle_prompts: tuple[FixedSpeech, ...] = ()
    phrases: tuple[FixedSpeech, ...] = ()
    tools: tuple[Tool, ...] = ()
    fillers: tuple[FixedSpeech, ...] = ()


@dataclass(frozen=True, slots=True)
class Choice:
    """What `up` prints: which model does a job, on what device, and why."""

    job: str
    model: str
    device: str
    why: str


class MakeCall(Protocol):
    """How a call is made: `Call`, or a recording one."""

    def __call__(
        self,
        stack: Stack,
        agent: AgentRuntime,
        on_event: Callable[[Event], None],
        *,
        lead_ms: int = 0,
    ) -> Call: ...


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
        content: bool = False,
        engine: Engine | None = None,
        engine_model: str = "",
        voices: VoiceService | None = None,
        choices: tuple[Choice, ...] = (),
        closers: tuple[Callable[[], None], ...] = (),
        toolbox: Toolbox | None = None,
        scripts: Mapping[str, Callable[[Handle], Awaitable[None]]] | None = None,
        models: Mapping[str, str] | None = None,
        announcement: str = "",
        tracing: Tracing | None = None,
        history: History | None = None,
        voice_cache_s: float = VOICE_CACHE_S,
        early: EarlyLimits | None = None,
        shorten_replies: bool = False,
        processors: Processors | None = None,
    ) -> None:
        """content: whether what is said may be written down. models: by backend, as traces name
        them. announcement: said before everything else (that the call is recorded).
        voice_cache_s: seconds of the operator's words whose sound is kept; 0: none.
        shorten_replies: whether load may make replies shorter, as the last thing it takes.
        processors: where the models run, if that is on this machine's."""
        self.clock = clock
        self.vad = vad
        self.smart_turn = smart_turn
        self.recognizer = recognizer
        self.thinker = thinker
        self.chat = chat
        self.tokenizer = tokenizer
        self.target_s = target_s
        self.answer_within_s = answer_within_s
        self.content = content
        self.engine = engine
        self.engine_model = engine_model
        self.models = dict(models or {})
        self.announcement = announcement
        self.tracing = tracing
        self.history = history
        self.make_call: MakeCall = Call
        self.voices = voices
        self.choices = choices
        self.ready = False
        self.own_speech_passes = 0
        """Transcripts that were our own voice coming back."""
        self.underrun_frames = 0
        """20 ms of silence each, in the middle of what we said."""
        self.noise = NoiseWatch(clock)
        self.forecast = Forecast(self, processors)
        most = Shed.REPLIES if shorten_replies else Shed.PARTIALS
        load = Load(clock, target_s, lambda: gauges.predicted_wait_s(self), most)
        self.early = EarlyWork(early or EarlyLimits(), load, clock)
        self.voice_cache = ClauseCache(voice_cache_s) if voice_cache_s > 0 else None
        self._speakers = dict(speakers)
        if self.voice_cache is not None:
            for voice, speaker in speakers.items():
                self._speakers[voice] = CachedSpeaker(speaker, voice, self.voice_cache)
        self._default_voice = default_voice
        self._shelf = shelf
        self._names = names
        self._max_context = max_context
        self._context_unit = context_unit
        self._runtimes: dict[str, AgentRuntime] = {}
        self._closers = closers
        self.toolbox = toolbox or Toolbox()
        self.scripts = dict(scripts or {})
        self._jobs: set[asyncio.Task[None]] = set()

    @property
    def max_prompt_tokens(self) -> int:
        """Ids of the tokenizer that a prompt may have, room for a reply set aside."""
        return self._max_context * 3 // 4

    # ------------------------------------------------------------ start and stop

    async def start(self) -> None:
        """Start the engine, make every agent's fixed speech, prefill and pin its prompt.

        Raises UsageError for an agent that is wrong, InternalError VA493 when a stage dies of it.
        """
        if self.engine is not None:
            self.engine.start()
        await watched(self._prepare_all(), Vitals(partial(signs, self)))
        self.ready = True
        self._spawn(self.forecast.lag.watch())
        self._spawn(self.forecast.watch())
        self._spawn(tidy())
        for runtime in self._runtimes.values():
            self._spawn(self._voice_phrases(runtime))

    async def _prepare_all(self) -> None:
        for name in self._names:
            runtime, problem = self._runtime(name)
            if problem is not None:
                raise problem
            self._runtimes[name] = await self._prepared(runtime)

    async def close(self) -> None:
        self.ready = False
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)
        await self.thinker.close()
        await self.toolbox.close()
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
        call = self.make_call(self, runtime, on_event, lead_ms=lead_ms)
        call.script = self.scripts.get(name)
        if self.history is not None:
            self.history.follow(call)
        return call

    def use_agents(self, names: list[str], shelf: AgentShelf | None = None) -> None:
        """New calls choose among these, the first by default; new ones are prepared in the
        background. shelf: where they are; None: where they were. Raises UsageError if one is not
        good; then nothing changes."""
        before = self._shelf, self._names
        self._shelf, self._names = shelf or self._shelf, names
        try:
            for name in names:
                _, problem = self._runtime(name)
                if problem is not None:
                    raise problem
        except UsageError:
            self._shelf, self._names = before
            raise

    def _runtime(self, name: str) -> tuple[AgentRuntime, UsageError | None]:
        """The agent as its file stands now; prepared if it has not changed since."""
        file, problem = self._shelf.get(name)
        known = self._runtimes.get(name)
        if known is not None and known.file is file:
            return known, problem
        tools = self.toolbox.ready(file.tools)
        self.check_instructions(file.instructions, tools)
        runtime = AgentRuntime(
            file=file,
            turn_taking=file.turn_taking.resolve(),
            speaker=self.speaker(file.voice),
            splitter=partial(ClauseSplitter, dict(file.lexicon)),
            sampling=_sampling(file),
            recovery=self.fixed(file.recovery),
            greeting=self._first_words(file),
            goodbye=self.fixed(file.goodbye) if file.goodbye else None,
            idle_prompts=tuple(map(self.fixed, file.idle_prompts)),
            phrases=tuple(map(self.fixed, file.phrases)),
            tools=tools,
            fillers=tuple(map(self.fixed, file.tools.fillers)) if file.tools.any else (),
        )
        if self.ready:  # an edited file: usable at once, prepared in the background
            self._runtimes[name] = runtime
            self._spawn(self._prepare_again(name, runtime))
        return runtime, problem

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        job = asyncio.get_running_loop().create_task(work)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)

    async def _prepare_again(self, name: str, runtime: AgentRuntime) -> None:
        try:
            prepared = await self._prepared(runtime)
        except Exception:
            log.exception("agent %s is used unprepared", name)
            return
        if self._runtimes.get(name) is runtime:
            self._runtimes[name] = prepared
            await self._voice_phrases(prepared)

    def _first_words(self, file: AgentFile) -> FixedSpeech | None:
        greeting = file.greeting if file.speaks_first else ""
        words = f"{self.announcement} {greeting}".strip()
        return self.fixed(words) if words else None

    def fixed(self, text: str) -> FixedSpeech:
        return FixedSpeech(text, tuple(self.tokenizer.encode(text)))

    async def _prepared(self, runtime: AgentRuntime) -> AgentRuntime:
        """The same agent with its tools found, its fixed speech in the clause cache and its prompt
        in the KV cache."""
        tools = await self.toolbox.complete(runtime.file.tools)
        self.check_instructions(runtime.file.instructions, tools)
        await self._voice(runtime, _never_missing(runtime), self.clock.now)
        greeting = runtime.greeting
        history = self.conversation(runtime.file.instructions, tools)
        if greeting is not None:
            history.add_assistant(greeting.ids, greeting.text, len(greeting.text))
        await self.thinker.prepare(
            history.prefix(), agent=runtime.file.name, tenant=runtime.file.tenant
        )
        return replace(runtime, tools=tools)

    async def _voice_phrases(self, runtime: AgentRuntime) -> None:
        """After `ready`, when the voice has nothing else to do: phrases that may be said."""
        said = [*_never_missing(runtime), *runtime.phrases]
        await self._voice(runtime, said, lambda: float("inf"))

    async def _voice(
        self, runtime: AgentRuntime, said: Sequence[FixedSpeech], deadline_s: Callable[[], float]
    ) -> None:
        """Have the agent's words in the clause cache, and no others of this agent."""
        speaker, keys = runtime.speaker, set[Key]()
        if self.voice_cache is None or not isinstance(speaker, CachedSpeaker):
            return
        for speech in said:
            splitter = runtime.splitter()
            for clause in [*splitter.push(speech.text), *splitter.finish()]:
                if clause.words:
                    speed = runtime.file.speed
                    keys.add(await speaker.make(clause, speed=speed, deadline_s=deadline_s))
        self.voice_cache.keep(runtime.file.name, keys)

    # ------------------------------------------------------------ lookups

    @property
    def follows_grammars(self) -> bool:
        """Replies can be made to have a form: the engine of this process makes them."""
        return self.engine is not None and isinstance(self.thinker, EngineThinker)

    def conversation(self, instructions: str, tools: Sequence[Tool] = ()) -> Conversation:
        """An empty history with these instructions."""
        told = [tool.declaration for tool in tools]
        return Conversation(self.chat, self.tokenizer, instructions, self.max_prompt_tokens, told)

    def speaker(self, voice: str) -> Speaker:
        """A loaded voice by name; "" is the default. Raises UsageError listing the names."""
        name = voice or self._default_voice
        if name not in self._speakers:
            known = ", ".join(sorted(self._speakers))
            raise UsageError(f"there is no voice {voice!r} here; loaded: {known}", code="VA114")
        return self._speakers[name]

    def check_instructions(self, text: str, tools: Sequence[Tool] = ()) -> None:
        """Raises UsageError when these would take over half of the model's context."""
        limit = self.max_prompt_tokens // 2
        told = [tool.declaration for tool in tools]
        n = len(self.chat.system(text, told) if told else self.tokenizer.encode(text))
        if n > limit:
            what = "instructions and tools" if told else "instructions"
            raise UsageError(
                f"the {what} have {n} {self._context_unit}; at most {limit} leave room for a "
                "conversation with this model: shorten them or choose a model with a longer "
                "context",
                code="VA110",
            )

    def check_length(self, text: str, what: str) -> None:
        """Raises UsageError when a text would take over a quarter of the model's context."""
        limit = self.max_prompt_tokens // 4
        n = len(text) if len(text) > 32 * limit else len(self.tokenizer.encode(text))
        if n > limit:
            raise UsageError(
                f"the {what} has {n} {self._context_unit}; with this model {limit} leave room for "
                "an answer: shorten it",
                code="VA109",
            )

    @property
    def shed(self) -> Shed:
        """What load has stopped."""
        return self.early.load.shed

    def outlook(self, calls: int) -> Outlook:
        """How soon a caller would be answered, with so many calls and with more."""
        return self.forecast.outlook(calls)

    def gauges(self) -> dict[str, float]:
        """Numbers of the engine and of each stage's queue, for /metrics."""
        return gauges.collect(self)

    def histograms(self) -> Mapping[str, Mapping[str, HistogramSnapshot]]:
        """The engine's distributions, for /metrics: metric name -> class of request -> values."""
        if self.engine is None:
            return {}
        return {f"engine_{name}": kinds for name, kinds in self.engine.histograms().items()}


def _never_missing(runtime: AgentRuntime) -> list[FixedSpeech]:
    """Words of the operator's that are heard without a wait, the most needed first."""
    asked = (runtime.recovery, runtime.greeting, runtime.goodbye)
    said = [speech for speech in asked if speech is not None]
    return [*said, *runtime.idle_prompts, *runtime.fillers]


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
