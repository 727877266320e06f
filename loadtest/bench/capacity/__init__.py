"""Calls a machine carries, on paper and simulated: `python -m loadtest.bench capacity`."""
