# Hourglass. `make help` lists everything a newcomer can do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := libs/osenv libs/mqproto libs/mqfilter libs/telemetry libs/mqclient libs/servicekit services/mq-namesrv services/mq-broker services/orders services/payments services/gateway tools/mqadmin tools/invariants examples/gift-lottery examples/order-timers examples/bank-transfer deploy/local loadtest

.DEFAULT_GOAL := help
.PHONY: help setup demo up invariants check format test test-system robustness zoo bench bench-micro lock proto clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

setup: $(VENV)/.installed  ## Install everything into .venv (demo and test do it by themselves)

$(VENV)/.installed: requirements.lock $(PACKAGES:%=%/pyproject.toml)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Hourglass needs Python 3.11 or newer; try make PYTHON=python3.12"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(PACKAGES:%=-e %)
	@touch $@

demo: setup  ## Place 200 orders, pay about half, let the rest close, and show what happened (DEMO_ORDERS=200)
	$(BIN)/python -m hourglass_local demo

up: setup  ## Run the queue, orders, payments and a sandbox gateway in the foreground until Ctrl-C
	$(BIN)/python -m hourglass_local up

# The three books of a shop; without a word, those that the last demonstration left.
ORDERS_URL ?= sqlite+aiosqlite:///.demo/orders.db
PAYMENTS_URL ?= sqlite+aiosqlite:///.demo/payments.db
GATEWAY_URL ?= sqlite+aiosqlite:///.demo/gateway.db

invariants: setup  ## Check money, stock and stuck orders by SQL, in what the last demo left (ORDERS_URL=, PAYMENTS_URL=, GATEWAY_URL=)
	$(BIN)/python -m hourglass_invariants --orders $(ORDERS_URL) --payments $(PAYMENTS_URL) --gateway $(GATEWAY_URL)

check: setup  ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard $(PACKAGES:%=%/src) $(PACKAGES:%=%/tests)) tests

format: setup  ## Format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## Run the tests (needs only what setup installed)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-system: setup  ## Run the tests that need more: PostgreSQL, Chromium, Maven and Java 17, loop devices, namespaces (REQUIRE=all: fail without)
	$(BIN)/python -m pytest --system tests deploy loadtest  # one at a time: a network namespace keeps what is mounted on a loop device
	$(BIN)/python -m pytest --system --numprocesses 2 --dist loadfile libs services tools examples  # on PostgreSQL

robustness: setup  ## Look for bugs by long sweeps, on all cores (HOURS=1, or SEEDS=1-20); docs/evidence/robustness.json
	$(BIN)/python tests/robustness/runner.py $(if $(HOURS),--hours $(HOURS)) $(if $(SEEDS),--seeds $(SEEDS))

zoo: setup  ## Put the bugs of RELIABILITY.md's zoo back, one by one, and see a test go red for each
	$(BIN)/python tests/robustness/zoo.py

bench: setup  ## Measure the queue: throughput, latency, memory, as a table and in docs/evidence/ (some minutes)
	$(BIN)/python -m hourglass_loadtest bench

bench-micro: setup  ## Measure the hot path function by function, in docs/evidence/ (three minutes)
	$(BIN)/python -m hourglass_loadtest micro

lock: setup  ## Pin requirements.in anew: every platform, with hashes
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade requirements.in --output-file requirements.lock

proto: setup  ## Generate the stubs from the .proto files
	$(BIN)/python libs/mqproto/generate_stubs.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) .demo .up .mypy_cache .ruff_cache .pytest_cache
