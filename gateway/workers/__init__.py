"""Processes that hold sockets, codecs and the output clock, and their link to the core."""
