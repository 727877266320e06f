"""llama.cpp's own HTTP server: `server.py MODEL --port N --threads N --slots N --context N`."""

import argparse
import threading

import xllamacpp  # type: ignore[import-not-found]

p = argparse.ArgumentParser()
p.add_argument("model")
p.add_argument("--port", type=int, required=True)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--slots", type=int, default=32)
p.add_argument("--context", type=int, default=1024, help="tokens of one slot")
p.add_argument("--setting", default="", help="unused: the file says it all")
a = p.parse_args()
c = xllamacpp.CommonParams()
c.model.path = a.model
c.hostnames, c.port = ["127.0.0.1"], a.port
c.n_parallel, c.n_ctx = a.slots, a.context * a.slots
c.cpuparams.n_threads = c.cpuparams_batch.n_threads = a.threads
c.cpuparams.poll = c.cpuparams_batch.poll = 0
c.cont_batching = True
c.kv_unified = False
c.ui = False
server = xllamacpp.Server(c)
threading.Event().wait()
