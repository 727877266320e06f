"""`transformers` generate behind HTTP: `server.py MODEL --port N --setting fp32|int8`.

Requests that wait are generated together, padded on the left, as `generate` batches: nobody joins
or leaves. int8 is PyTorch's dynamic quantisation of every linear layer.
"""

import argparse
import json
import queue
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

GATHER_S = 0.02
Job = dict[str, Any]
Jobs = queue.Queue[Job]


def load(path: str, setting: str) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    if setting == "int8":
        warnings.simplefilter("ignore")  # the old quantisation interface is deprecated
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
        quantise: Any = torch.ao.quantization.quantize_dynamic
        model = quantise(model, {torch.nn.Linear}, torch.qint8)
    return model


class Fan:
    """Hands each step's tokens to their requests; `generate` calls it with one column a step."""

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs, self.first = jobs, True

    def put(self, values: torch.Tensor) -> None:
        if self.first:  # the prompt
            self.first = False
            return
        for job, token in zip(self.jobs, values.reshape(-1).tolist(), strict=True):
            if job["sent"] < job["max_tokens"]:
                job["sent"] += 1
                job["out"].put(token)

    def end(self) -> None:
        for job in self.jobs:
            job["out"].put(None)


def work(model: Any, jobs: Jobs, slots: int) -> None:
    while True:
        batch = [jobs.get()]
        until = time.monotonic() + GATHER_S
        while len(batch) < slots and (left := until - time.monotonic()) > 0:
            try:
                batch.append(jobs.get(timeout=left))
            except queue.Empty:
                break
        longest = max(len(job["prompt"]) for job in batch)
        ids = torch.zeros(len(batch), longest, dtype=torch.long)
        mask = torch.zeros_like(ids)
        for row, job in enumerate(batch):
            ids[row, longest - len(job["prompt"]) :] = torch.tensor(job["prompt"])
            mask[row, longest - len(job["prompt"]) :] = 1
        n = max(job["max_tokens"] for job in batch)
        with torch.inference_mode():
            model.generate(
                ids, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False,
                pad_token_id=0, streamer=Fan(batch),
            )  # fmt: skip


def handler(tokenizer: Any, jobs: Jobs) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.reply(b'{"object": "list", "data": []}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            job: Job = {"prompt": body["prompt"], "max_tokens": body["max_tokens"], "sent": 0}
            job["out"] = queue.Queue()
            jobs.put(job)
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.close_connection = True
            while (token := job["out"].get()) is not None:
                self.event({"choices": [{"index": 0, "text": tokenizer.decode([token])}]})
            self.event({"choices": [], "usage": {"completion_tokens": job["sent"]}})
            self.wfile.write(b"data: [DONE]\n\n")

        def event(self, value: dict[str, Any]) -> None:
            self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
            self.wfile.flush()

        def reply(self, data: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("model")
    p.add_argument("--port", type=int, required=True)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--slots", type=int, default=32)
    p.add_argument("--context", type=int, help="unused: generate allocates as it goes")
    p.add_argument("--setting", choices=("fp32", "int8"), default="fp32")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    model = load(a.model, a.setting)
    jobs: Jobs = queue.Queue()
    threading.Thread(target=work, args=(model, jobs, a.slots), daemon=True).start()
    tokenizer = AutoTokenizer.from_pretrained(a.model)
    ThreadingHTTPServer(("127.0.0.1", a.port), handler(tokenizer, jobs)).serve_forever()


if __name__ == "__main__":
    main()
