"""`python -m voice_agent.cli`."""

from __future__ import annotations

from voice_agent.cli import main

main()
