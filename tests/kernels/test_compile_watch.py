from __future__ import annotations

import logging
import types

import pytest

from kernels import compile_watch

pytestmark = pytest.mark.unit


@pytest.fixture
def asleep(monkeypatch):
    """As in a process that has compiled nothing."""
    monkeypatch.setattr(compile_watch, "_noted", [])
    monkeypatch.setattr(compile_watch, "_armed", False)
    triton = compile_watch.sys.modules.get("triton")
    if triton is not None:  # an engine of another test may have armed it
        monkeypatch.setattr(triton.knobs.runtime, "jit_post_compile_hook", None)


def test_what_is_compiled_after_arming_is_counted_and_warned_of(asleep, caplog):
    caplog.set_level(logging.WARNING)
    compile_watch.note("early")
    assert compile_watch.arm() == 1
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    compile_watch.note("late")
    assert compile_watch.total() == 2
    assert [r.getMessage() for r in caplog.records] == ["compiled: late"]


def test_tritons_own_hook_is_used_once_and_an_older_one_goes_on(asleep, monkeypatch):
    seen = []
    runtime = types.SimpleNamespace(jit_post_compile_hook=lambda **kw: seen.append(kw) or "kept")
    fake = types.SimpleNamespace(knobs=types.SimpleNamespace(runtime=runtime))
    monkeypatch.setitem(compile_watch.sys.modules, "triton", fake)
    compile_watch.arm()
    compile_watch.arm()
    assert runtime.jit_post_compile_hook(repr="rms_norm[num_warps=4]", key="k") == "kept"
    assert seen == [{"repr": "rms_norm[num_warps=4]", "key": "k"}]
    assert compile_watch._noted == ["Triton kernel rms_norm[num_warps=4]"]


def test_triton_has_the_hook(asleep):
    triton = pytest.importorskip("triton")
    runtime = triton.knobs.runtime
    before = runtime.jit_post_compile_hook
    try:
        compile_watch.arm()
        runtime.jit_post_compile_hook(repr="a kernel")
    finally:
        runtime.jit_post_compile_hook = before
    assert compile_watch.total() == 1
