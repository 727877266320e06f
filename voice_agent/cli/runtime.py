"""Before and after loading: is `kernels` ours, logs, and an interpreter that does not pause."""

from __future__ import annotations

import gc
import sys

from threadpoolctl import ThreadpoolController

from voice_agent import logs
from voice_agent.agent_file import find_agent, load_agent
from voice_agent.config import Config
from voice_agent.doctor import check_kernels

SWITCH_INTERVAL_S = 0.0005


def begin(config: Config) -> None:
    """Cheap checks that should fail before any model is loaded.

    Raises UsageError VA471 (foreign `kernels`), VA440 to VA443 (the default agent's file).
    """
    logs.setup(config.log.format, config.log.level)
    check_kernels()
    load_agent(find_agent(config.default_agent, config.agents_dir))


def settle() -> None:
    """After loading: nothing loaded so far is ever collected, threads hand over quickly, and NumPy
    computes where it is called."""
    one_blas_thread()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()


def one_blas_thread() -> None:
    """OpenBLAS's further threads wait for work in a busy loop: for a spectrogram a turn they took
    1.7 s of processor time a minute from the model beside them."""
    ThreadpoolController().select(internal_api="openblas").limit(limits=1)
