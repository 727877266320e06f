"""vLLM's own HTTP server on the CPU: `server.py MODEL --port N --threads N --slots N ...`."""

import argparse
import os
import sys

p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--port", type=int, required=True)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--slots", type=int, default=32)
p.add_argument("--context", type=int, default=1024, help="tokens of one request")
p.add_argument("--setting", default="float32", help="dtype")
a = p.parse_args()
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
os.environ["VLLM_CPU_OMP_THREADS_BIND"] = f"0-{a.threads - 1}"
os.environ["VLLM_NO_USAGE_STATS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
command = (
    f"serve {a.model} --served-model-name bench --host 127.0.0.1 --port {a.port} "
    f"--dtype {a.setting} --max-model-len {a.context} --max-num-seqs {a.slots} "
    "--enable-prefix-caching --disable-log-stats --uvicorn-log-level warning"
)
vllm = os.path.join(os.path.dirname(sys.executable), "vllm")
os.execv(vllm, [vllm, *command.split()])
