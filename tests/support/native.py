"""Tests of the native CPU kernels run where they can be built."""

from __future__ import annotations

import ctypes

import pytest

from kernels import build


def library(level: str | None = None) -> ctypes.CDLL:
    """The kernels for an instruction set, or skips and says what is missing."""
    try:
        return build.library(level)
    except build.NativeUnavailable as reason:
        pytest.skip(f"NOT RUN: needs the native kernels: {reason}")
