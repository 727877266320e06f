"""A language model of one's own: it repeats what it hears. Put any model in its place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from voice_agent import Agent, serve


class Parrot:
    name = "parrot"

    async def reply(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
    ) -> AsyncIterator[str]:
        """Pieces of text, as soon as they are there: each full clause is spoken at once."""
        heard = messages[-1]["content"]
        yield "You said: "
        for word in heard.split():
            yield f"{word} "
        yield "."


agent = Agent("Repeat.", greeting="I repeat what you say.")

if __name__ == "__main__":
    serve(agent, thinker=Parrot(), port=8080)
