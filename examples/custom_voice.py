"""A voice of one's own: every word is a tone. Put a synthesiser in its place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from voice_agent import Agent, serve


class Whistle:
    """One tone a word, 220 ms each, higher for longer words."""

    name = "whistle"
    sample_rate = 16_000

    def speak(self, text: str) -> Iterator[NDArray[np.int16]]:
        seconds = np.arange(int(0.22 * self.sample_rate)) / self.sample_rate
        fade = np.sin(np.pi * seconds / 0.22)
        for word in text.split():
            tone = np.sin(2 * np.pi * (300 + 60 * len(word)) * seconds)
            yield (8000 * fade * tone).astype(np.int16)


agent = Agent("Answer in one short sentence.", greeting="Hello there.")

if __name__ == "__main__":
    serve(agent, voice=Whistle(), port=8080)
