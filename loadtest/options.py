"""What a load test is asked to do; one frozen record from the command line to the report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from loadtest.scenario import Arrival

Transport = Literal["inproc", "ws", "webrtc", "sip"]
Answers = Literal["script", "model"]
CLIPS = Path(__file__).parent.parent / "tests" / "data" / "clips"
CLIP_NAMES = (
    "ps_goforward", "ps_something", "ps_cards_005", "ps_cards_001", "ps_cards_003",
    "ps_austen_0880", "ps_austen_0930",
)  # fmt: skip
"""Of that folder: one breath each, so that a turn's end is where the recording ends."""


@dataclass(frozen=True, slots=True)
class Options:
    """seconds: no turn begins later. url: of a running server, None for one of our own, which
    `settings` (dotted names of the configuration) are for. baseline: static batching, first come
    first served in every stage, no prefix cache. held_s: how often our own server's process writes
    down what it holds; None: never."""

    calls: int = 2
    seconds: float = 60.0
    transport: Transport = "ws"
    scenario: str = "chatty"
    arrival: Arrival | None = None
    answers: Answers = "script"
    seed: int = 1
    patience_s: float = 15.0
    clips: Path = CLIPS
    url: str | None = None
    sip_address: str | None = None
    key: str = ""
    baseline: bool = False
    llm: str = "smollm2-135m"
    stt: str = "whisper-tiny.en"
    voice: str = "piper-joe"
    settings: Mapping[str, str] = field(default_factory=dict)
    held_s: float | None = None

    @property
    def scripted(self) -> bool:
        """Whether every session has a code word: a server of our own, with scripted answers."""
        return self.url is None and self.answers == "script"
