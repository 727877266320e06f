"""Imports run one way: gateway -> voice_agent -> engine -> kernels; the engine is our own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[1]
OURS = ("gateway", "voice_agent", "engine", "kernels", "loadtest")
ALLOWED = {
    "gateway": {"gateway", "voice_agent", "engine", "kernels"},
    "voice_agent": {"voice_agent", "engine", "kernels"},
    "engine": {"engine", "kernels"},
    "kernels": {"kernels"},
    "loadtest": {"loadtest", "engine", "kernels", "voice_agent"},
}
COMMAND_LINE = "voice_agent/cli/"
"""May wire the gateway and the load tests in."""
CALLERS = "loadtest/callers"
WHOLE_CALLS = (
    "loadtest/bench/capacity",
    "loadtest/bench/conversation",
    "loadtest/bench/gil",
    "loadtest/bench/transport",
)
"""May run the gateway's media tick, or the gateway."""
OTHER_ENGINES = {
    "transformers", "vllm", "sglang", "llama_cpp", "xllamacpp", "ctransformers", "optimum",
    "onnxruntime_genai", "exllamav2", "mlc_llm", "accelerate",
}  # fmt: skip
"""The engine reads weights and runs them itself."""


def imported(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands; relative ones made absolute."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = package.split(".")[: len(package.split(".")) - node.level + 1]
                yield node.lineno, ".".join([*base, node.module or ""])
            else:
                yield node.lineno, node.module or ""


def violations(path: str, source: str) -> list[str]:
    """What a file (path relative to the root) imports and must not."""
    owner = path.split("/")[0]
    package = path.rsplit("/", 1)[0].replace("/", ".")
    allowed = ALLOWED[owner]
    if path.startswith(COMMAND_LINE):
        allowed = set(OURS)
    elif path.startswith(WHOLE_CALLS):
        allowed = allowed | {"gateway"}
    elif path.startswith(CALLERS):
        allowed = set()
    found = []
    for line, module in imported(source, package):
        top = module.split(".")[0]
        inside = path.startswith(CALLERS) and module.startswith("loadtest.callers")
        other_engine = owner in ("engine", "kernels") and top in OTHER_ENGINES
        if (top in OURS and top not in allowed and not inside) or other_engine:
            found.append(f"{path}:{line} imports {module}")
    return found


def sources() -> list[str]:
    return [
        path.relative_to(ROOT).as_posix()
        for package in OURS
        for path in sorted((ROOT / package).rglob("*.py"))
    ]


def test_imports_run_one_way():
    files = sources()
    assert len(files) > 20, "the packages were not found"
    found = [v for path in files for v in violations(path, (ROOT / path).read_text("utf-8"))]
    assert not found, "\n".join(found)


def test_kernels_is_a_namespace_folder():
    """With an __init__.py, transformers would take it for another package of this name."""
    assert not (ROOT / "kernels" / "__init__.py").exists()


@pytest.mark.parametrize(
    ("path", "source", "bad"),
    [
        ("engine/a.py", "import voice_agent.types", True),
        ("engine/a.py", "def f():\n    from voice_agent import types", True),
        ("engine/a.py", "from kernels.rope import reference", False),
        ("engine/text/a.py", "from ..errors import UsageError", False),
        ("engine/a.py", "def f():\n    from transformers import LlamaForCausalLM", True),
        ("voice_agent/a.py", "import transformers", False),
        ("kernels/rope/a.py", "from engine.errors import UsageError", True),
        ("voice_agent/a.py", "from gateway.app import app", True),
        ("voice_agent/cli/up.py", "from gateway.app import app", False),
        ("voice_agent/a.py", "import loadtest", True),
        ("gateway/a.py", "import engine.client, os", False),
        ("loadtest/bench.py", "import gateway", True),
        ("loadtest/bench/conversation/ours.py", "from gateway.media import echo", False),
        ("loadtest/bench/transport/server.py", "from gateway.app import create_app", False),
        ("loadtest/callers/a.py", "import voice_agent", True),
        ("loadtest/callers/a.py", "from . import b", False),
        ("loadtest/callers/a.py", "from loadtest import report", True),
    ],
)
def test_the_rule_itself(path, source, bad):
    assert bool(violations(path, source)) == bad
