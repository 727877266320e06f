"""What a program of one's own brings along when it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from voice_agent.agent_file import AgentFile
from voice_agent.brain import Brain
from voice_agent.config import Config
from voice_agent.llm_section import LlmSection
from voice_agent.plain_text import CHARS_PER_TOKEN, PlainChat, PlainTokenizer

from .adapters import OwnThinker, name_of
from .agent import Agent
from .protocols import Recognizer, Thinker, Voice


@dataclass(frozen=True, slots=True)
class Parts:
    """agents: the first is the default; none: the agents' folder. The models: None is the house's
    own."""

    agents: Mapping[str, Agent] = field(default_factory=dict)
    recognizer: Recognizer | None = None
    voice: Voice | None = None
    thinker: Thinker | None = None

    def files(self) -> dict[str, AgentFile]:
        return {name: agent.file() for name, agent in self.agents.items()}

    def settled(self, config: Config) -> Config:
        """The configuration with names where nothing is to be chosen."""
        models, changed = config.models, {}
        if self.recognizer is not None:
            changed["stt"] = "whisper-tiny.en"
        if self.voice is not None:
            changed["voice"] = "piper-joe"
        update: dict[str, object] = {"models": models.model_copy(update=changed)}
        if self.thinker is not None:
            update["llm"] = LlmSection(
                backend="openai",
                base_url="http://own/v1",  # never asked
                model=name_of(self.thinker),
                context_tokens=config.llm.context_tokens,
            )
        return config.model_copy(update=update)

    def brain(self, config: Config) -> Brain | None:
        if self.thinker is None:
            return None
        limit = config.llm.context_tokens * CHARS_PER_TOKEN
        thinker = OwnThinker(self.thinker)
        return Brain(thinker, PlainChat(), PlainTokenizer(), limit, "characters", None)
