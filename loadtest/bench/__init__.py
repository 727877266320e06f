"""Benchmarks of the stages; they may import engine, kernels and voice_agent."""
