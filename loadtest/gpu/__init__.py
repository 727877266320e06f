"""One script for all GPU checks and timings: `python -m loadtest.gpu`.

Needs PyTorch, Triton and NumPy; a phase whose package or model is missing says so and is left out.
"""
