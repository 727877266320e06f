"""What a server's process is set to once everything is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threadpoolctl import ThreadpoolController

from voice_agent.cli.runtime import one_blas_thread

pytestmark = pytest.mark.unit


def blas_threads() -> list[int]:
    found = ThreadpoolController().select(internal_api="openblas").info()
    return [library["num_threads"] for library in found]


@pytest.fixture
def two_threads() -> Iterator[None]:
    with ThreadpoolController().select(internal_api="openblas").limit(limits=2):
        yield


@pytest.mark.usefixtures("two_threads")
def test_numpy_keeps_no_threads_waiting_beside_the_models() -> None:
    if blas_threads() == []:
        pytest.skip("this NumPy has another BLAS")
    assert max(blas_threads()) > 1
    one_blas_thread()
    assert set(blas_threads()) == {1}
