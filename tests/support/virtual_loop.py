"""The virtual clock that replays run on, for tests."""

from voice_agent.replay.virtual_loop import VirtualLoop, run_virtual

__all__ = ["VirtualLoop", "run_virtual"]
