"""Simulated callers. They are clients: nothing of ours is imported here."""
