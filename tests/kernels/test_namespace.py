"""`transformers` looks for another package called `kernels`; ours must not be taken for it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]


def test_kernels_is_our_namespace_folder() -> None:
    import kernels

    assert kernels.__file__ is None
    folders = {Path(entry).resolve() for entry in kernels.__path__ if Path(entry).is_dir()}
    assert folders == {ROOT / "kernels"}


def test_transformers_lives_beside_it() -> None:
    from transformers import LlamaForCausalLM

    assert LlamaForCausalLM is not None
