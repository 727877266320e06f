"""The command line. Heavy parts are imported by the command that needs them."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `voice-agent` script."""
    from voice_agent.cli.app import app

    app()


__all__ = ["main"]
