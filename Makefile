# `make help` lists the targets. Needs Python 3.11 or newer, make, and a Python package index.

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=
# An extra index for PyTorch builds, e.g. one with CPU-only wheels (smaller).
TORCH_INDEX ?=
# What is installed beside the device's own: dev for the tests, otel and sip for a server without.
EXTRAS ?= dev

BIN   := $(VENV)/bin
# A GPU that the driver can see decides; DEVICE=cpu or DEVICE=cuda overrides it.
DEVICE ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
CONSTRAINTS := constraints/$(DEVICE).txt
BROWSER = $(and $(shell command -v chromium),$(shell command -v node))
TORCH := $(shell grep -m1 '^torch==' $(CONSTRAINTS) 2>/dev/null)

VENV_DONE    := $(VENV)/.stamp-venv
TORCH_DONE   := $(VENV)/.stamp-torch-$(DEVICE)
comma := ,
INSTALL_DONE := $(VENV)/.stamp-install-$(DEVICE)$(if $(filter-out dev,$(EXTRAS)),-$(subst $(comma),-,$(EXTRAS)))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install up kernels models test test-slow test-image test-postgres test-net test-browser test-sanitized test-kernels fuzz fuzz-guided test-aborts audit lint type bench bench-engine bench-kernels bench-peers bench-transport bench-line bench-conversation bench-smoke bench-capacity bench-gil soak soak-short load clean

help: ## This list.
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

install: $(INSTALL_DONE) ## Create .venv and install everything (done by the others when needed).

$(VENV_DONE):
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, this is %s" % sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip uv
	@touch $@

# torch first and by pip: pip prefers a local CPU build where there is one.
$(TORCH_DONE): $(VENV_DONE) $(CONSTRAINTS)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) '$(TORCH)'
	@touch $@

$(INSTALL_DONE): $(TORCH_DONE) $(CONSTRAINTS) pyproject.toml
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/uv pip install --quiet -c $(CONSTRAINTS) -e '.[$(DEVICE),$(EXTRAS)]'
	@touch $@

up: $(INSTALL_DONE) ## Start the server; fetches missing models first. ARGS="--port 9000" is passed on.
	$(BIN)/voice-agent up $(ARGS)

kernels: $(INSTALL_DONE) ## Compile the native kernels: for this processor, and for NVIDIA GPUs where nvcc is.
	$(BIN)/python -m kernels

models: $(INSTALL_DONE) ## Fetch what `up` needs on a new machine.
	$(BIN)/voice-agent models fetch --group default $(if $(filter cuda,$(DEVICE)),kokoro-int8 kokoro-voices) $(ARGS)

# Whole calls in real time one after another; what only computes, or only waits for Chromium, in two processes.
test: $(INSTALL_DONE) ## All tests that this machine can run in minutes.
	$(BIN)/voice-agent models fetch --group small
	@command -v chromium >/dev/null || echo "NOT RUN: browser tests: needs chromium"
	@command -v "$${CXX:-g++}" >/dev/null || echo "NOT RUN: native kernels: needs g++"
	@command -v nvcc >/dev/null || [ -x "$(CUDA_HOME)/bin/nvcc" ] || echo "NOT RUN: CUDA builds: needs nvcc"
	@command -v node >/dev/null || echo "NOT RUN: browser tests: needs node"
	@command -v sipp >/dev/null || echo "NOT RUN: telephone tests: needs sipp"
	@command -v iptables >/dev/null || echo "NOT RUN: NAT tests: needs iptables"
	@command -v turnserver >/dev/null || echo "NOT RUN: TURN tests: needs coturn"
	@rc=0; \
	$(BIN)/python -m pytest --durations=15 -m "e2e and not slow and not gpu$(if $(BROWSER),, and not browser)" $(ARGS) || [ $$? -eq 5 ] || rc=1; \
	$(if $(BROWSER),$(BIN)/python -m pytest -n 2 --durations=15 -m "browser and not e2e and not slow" $(or $(ARGS),tests/browser) || [ $$? -eq 5 ] || rc=1;) \
	$(BIN)/python -m pytest -n 2 --dist loadfile --durations=15 -m "(unit or interp or model) and not slow and not gpu" $(ARGS) || [ $$? -eq 5 ] || rc=1; \
	exit $$rc

test-browser: $(INSTALL_DONE) ## Only the tests with headless Chromium.
	$(BIN)/python -m pytest -m browser $(ARGS)

test-sanitized: $(INSTALL_DONE) ## The native kernels under AddressSanitizer and UBSan (minutes).
	VOICE_AGENT_NATIVE_FLAGS="-fsanitize=address,undefined -fno-sanitize-recover -g -O1" \
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
	$(BIN)/python -m pytest -p no:cacheprovider -m "not gpu" tests/kernels/test_linear_group.py tests/kernels/test_native_ops.py \
	tests/kernels/test_cuda_linear_group.py tests/kernels/test_cuda_paged_attention_decode.py $(ARGS)

test-slow: $(INSTALL_DONE) ## What is too long for `make test` and has no target of its own (tens of minutes).
	$(BIN)/python -m pytest -m "slow and not gpu" --ignore tests/kernels --ignore tests/deploy --ignore tests/net \
	--ignore tests/voice_agent/history --ignore tests/loadtest/test_bench_impaired.py --ignore tests/browser/test_bad_line.py \
	--ignore tests/browser/test_page_behind_nat.py --ignore tests/browser/test_network_change.py $(ARGS)

test-kernels: $(INSTALL_DONE) ## GPU kernels compiled for every shape and architecture; no GPU needed (minutes).
	$(BIN)/python -m pytest -m slow tests/kernels $(ARGS)

fuzz: $(INSTALL_DONE) ## Damaged messages to every parser, many more than `make test` tries. FUZZ_EXAMPLES=20000
	FUZZ_EXAMPLES=$(or $(FUZZ_EXAMPLES),5000) $(BIN)/python -m pytest tests/fuzz $(ARGS)

fuzz-guided: $(INSTALL_DONE) ## The same guided by coverage (atheris, Linux), each parser for FUZZ_S=60 seconds.
	for target in realtime media_stream sdp rtp opus; do \
	  $(BIN)/python -m tests.fuzz.guided $$target -max_total_time=$(or $(FUZZ_S),60) -max_len=4096 $(ARGS) || exit 1; \
	done

test-aborts: $(INSTALL_DONE) ## Clients that leave at every stage of a handshake, 10,000 times.
	ABORT_CYCLES=10000 $(BIN)/python -m pytest tests/gateway/test_aborts.py $(ARGS)

test-image: $(INSTALL_DONE) ## The Dockerfile's own commands, one by one in an empty folder (minutes).
	$(BIN)/python -m pytest -m slow tests/deploy $(ARGS)

test-net: $(INSTALL_DONE) ## Calls between network namespaces: NATs, TURN, a bad line, an SBC (root, iptables, coturn, kamailio).
	$(BIN)/python -m pytest -m "slow or not slow" tests/net tests/loadtest/test_bench_impaired.py \
	tests/browser/test_page_behind_nat.py tests/browser/test_network_change.py tests/browser/test_bad_line.py $(ARGS)

test-postgres: $(INSTALL_DONE) ## The call history on PostgreSQL; its server must be installed.
	$(BIN)/python -m pytest -m slow tests/voice_agent/history $(ARGS)

audit: $(INSTALL_DONE) ## Known weaknesses of the pinned packages. Status 2: the advisory service did not answer.
	PIP_AUDIT=$(BIN)/pip-audit .ci/audit $(ARGS)

lint: $(INSTALL_DONE) ## Style.
	$(BIN)/ruff check .

type: $(INSTALL_DONE) ## Types.
	$(BIN)/mypy

bench: $(INSTALL_DONE) ## Benchmarks of the stages on this machine.
	$(BIN)/python -m loadtest.bench $(ARGS)

bench-engine: $(INSTALL_DONE) ## The engine's modes and its peers. ARGS="--model qwen2.5-0.5b --only fixed"
	$(BIN)/python -m loadtest.bench engine $(ARGS)

bench-kernels: $(INSTALL_DONE) ## The CPU kernels against what memory and the processor allow. ARGS="--quick"
	$(BIN)/python -m loadtest.bench kernels $(ARGS)

bench-peers: $(INSTALL_DONE) ## Install what bench-engine compares with, each in its own environment.
	$(BIN)/python -m loadtest.bench peers $(ARGS)

bench-transport: $(INSTALL_DONE) ## What carrying a call costs, by transport, beside stock aiortc. ARGS="--calls 4"
	$(BIN)/python -m loadtest.bench transport --json out/transport.json $(ARGS)

bench-line: $(INSTALL_DONE) ## Calls over a line with loss and jitter, in real time (root). ARGS="--loss 10"
	$(BIN)/python -m loadtest.bench transport --impaired --json out/line.json $(ARGS)

bench-conversation: $(INSTALL_DONE) ## Turn-taking beside two baselines. ARGS="--quick" or "--clips DIR"
	$(BIN)/python -m loadtest.conversation --json out/conversation.json $(ARGS)

bench-smoke: $(INSTALL_DONE) ## Counts and ratios beside the committed baseline; status 1 where one is worse. ARGS=--accept
	$(BIN)/voice-agent models fetch --group small
	$(BIN)/python -m loadtest.bench smoke $(ARGS)

bench-capacity: $(INSTALL_DONE) ## Calls that a machine carries, on paper and simulated. ARGS="--profile gpu"
	$(BIN)/python -m loadtest.bench capacity --json out/capacity.json $(ARGS)

bench-gil: $(INSTALL_DONE) ## The core's Python at 74 calls without models, against its budget.
	$(BIN)/python -m loadtest.bench gil --json out/gil.json $(ARGS)

soak: $(INSTALL_DONE) ## Two hours of calls that come and go: does the server's memory grow?
	$(BIN)/python -m loadtest.soak --minutes 120 --json out/soak.json $(ARGS)

soak-short: $(INSTALL_DONE) ## The same for three minutes.
	$(BIN)/python -m loadtest.soak --minutes 3 --json out/soak-short.json $(ARGS)

load: $(INSTALL_DONE) ## Simulated callers against a server of their own. ARGS="--calls 4 --scenario barge-in"
	$(BIN)/voice-agent loadtest run --json out/load.json $(ARGS)

clean: ## Remove .venv and caches; models stay.
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
