# Everything a newcomer needs: `make demo` and `make test`. Both set up their own environment in .venv.
PYTHON ?= python3
SPEED ?=
SECONDS ?=
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: setup demo demo-vllm test check lint generate warm-snapshot bench bench-full chaos soak clean

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev,otlp]"
	$(BIN)/python -m pipelines.standard_job
	touch $(STAMP)

setup: $(STAMP)

demo: setup
	$(BIN)/twincast demo $(if $(SPEED),--speed $(SPEED)) $(if $(SECONDS),--seconds $(SECONDS))

# A real vLLM on this machine's CPU under the twin; installs several GB in .cache/vllm once.
demo-vllm: setup
	$(BIN)/python examples/vllm/demo.py $(if $(SECONDS),--seconds $(SECONDS))

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check

# Cheap first: style, types, then every test; those on a real Kafka skip with a reason where none can be started.
check: lint
	$(BIN)/pytest

# Files made from the code: JSON Schemas, AsyncAPI, the picture of the flow, the reference. A test keeps them equal.
generate: setup
	$(BIN)/python -m pipelines.contracts
	$(BIN)/python -m pipelines.topology README.md
	$(BIN)/python -m pipelines.reference
	$(BIN)/python -m pipelines.outlets.grafana_dashboards

# What a run over the steady recording has learned: the demo begins with it. Make it anew when the state changes.
warm-snapshot: setup
	$(BIN)/twincast backtest examples/recordings/steady --save-state examples/warm.json.gz

# Every figure of docs/BENCHMARKS.md that takes minutes; `bench-full` those that take an hour as well.
LONG_BENCHES := bench_closed_loop bench_archive bench_chaos bench_soak
bench: setup
	for file in tests/bench/bench_*.py; do \
	  name=$$(basename $$file .py); \
	  case " $(LONG_BENCHES) " in *" $$name "*) continue;; esac; \
	  $(BIN)/python -m tests.bench.$$name || exit 1; \
	done

bench-full: bench
	for name in $(LONG_BENCHES); do $(BIN)/python -m tests.bench.$$name || exit 1; done

# Faults at random against workers and broker; a worker for half an hour, its memory and its lag.
chaos: setup
	$(BIN)/python -m tests.bench.bench_chaos

soak: setup
	$(BIN)/python -m tests.bench.bench_soak

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
