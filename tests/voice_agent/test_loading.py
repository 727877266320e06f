"""Where models run: the CPU, and a GPU asked for is refused with the reason."""

from __future__ import annotations

import pytest

from voice_agent.config import Config
from voice_agent.errors import UsageError
from voice_agent.loading import runs_on
from voice_agent.machine import Gpu, Machine

pytestmark = pytest.mark.unit


def machine(gpu: Gpu | None) -> Machine:
    return Machine("cpu", 2, frozenset(), 24_000, 20_000, gpu)


@pytest.mark.parametrize("gpu", [None, Gpu("H200", 140_000, True), Gpu("old", 1, False, "old")])
def test_auto_runs_on_the_cpu_whatever_is_there(gpu: Gpu | None) -> None:
    assert runs_on(Config(), machine(gpu)) == "cpu"


@pytest.mark.parametrize("gpu", [None, Gpu("H200", 140_000, True)])
def test_the_gpu_profile_is_refused(gpu: Gpu | None) -> None:
    with pytest.raises(UsageError, match="VA476"):
        runs_on(Config(profile="gpu"), machine(gpu))
