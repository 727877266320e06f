"""The core's Python at many calls, without models: `python -m loadtest.bench gil`."""
