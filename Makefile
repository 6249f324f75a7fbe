# Hourglass. `make help` lists everything a newcomer can do.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Tests start hundreds of processes of these sources: what Python has compiled is kept, also where it is told not to.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup demo up invariants load pipeline pipeline-live backfill check hooks format test test-system test-compose robustness zoo bench bench-micro bench-guard bench-telemetry bench-pipeline bench-statistics bench-restarts bench-peers first-minutes shape features docs wheels lock upgrade sbom audit proto clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 17

# Three layers, each with the one before: what runs, Spark with it, and everything. A target installs the layer that it
# needs, by uv or, with INSTALLER=pip, by pip. Each is one installation: Spark has no wheel, and would be fetched again.
export PYTHON INSTALLER
RUNTIME_PACKAGES := libs/osenv libs/mqproto libs/mqfilter libs/telemetry libs/mqremoting libs/mqclient libs/servicekit services/mq-namesrv services/mq-broker services/orders services/payments services/gateway tools/mqadmin tools/invariants tools/hourglass deploy/local
PIPELINE_PACKAGES := libs/pyspark-mq services/analytics
DEVELOPMENT_PACKAGES := examples/gift-lottery examples/order-timers examples/bank-transfer loadtest
PACKAGES := $(RUNTIME_PACKAGES) $(PIPELINE_PACKAGES) $(DEVELOPMENT_PACKAGES)

setup: $(VENV)/.development  ## Install everything into .venv (each target installs what it needs; INSTALLER=pip: without uv)

$(VENV)/.runtime: requirements/runtime.lock $(RUNTIME_PACKAGES:%=%/pyproject.toml)
	sh requirements/install.sh $(VENV) $< $(RUNTIME_PACKAGES)
	@touch $@

$(VENV)/.pipeline: requirements/pipeline.lock $(RUNTIME_PACKAGES:%=%/pyproject.toml) $(PIPELINE_PACKAGES:%=%/pyproject.toml)
	sh requirements/install.sh $(VENV) $< $(RUNTIME_PACKAGES) $(PIPELINE_PACKAGES)
	@touch $(VENV)/.runtime $@

$(VENV)/.development: requirements/development.lock $(PACKAGES:%=%/pyproject.toml)
	sh requirements/install.sh $(VENV) $< $(PACKAGES)
	@touch $(VENV)/.runtime $(VENV)/.pipeline $@

demo: $(VENV)/.runtime  ## Place 200 orders, pay about half, let the rest close, and show what happened (DEMO_ORDERS=200)
	$(BIN)/python -m hourglass_local demo

up: $(VENV)/.runtime  ## Run the queue, orders, payments and a sandbox gateway in the foreground until Ctrl-C
	$(BIN)/python -m hourglass_local up

# The three books of a shop; without a word, those that the last demonstration left.
ORDERS_URL ?= sqlite+aiosqlite:///.demo/orders.db
PAYMENTS_URL ?= sqlite+aiosqlite:///.demo/payments.db
GATEWAY_URL ?= sqlite+aiosqlite:///.demo/gateway.db

invariants: $(VENV)/.runtime  ## Check money, stock and stuck orders by SQL, in what the last demo left (ORDERS_URL=, PAYMENTS_URL=, GATEWAY_URL=)
	$(BIN)/python -m hourglass_invariants --orders $(ORDERS_URL) --payments $(PAYMENTS_URL) --gateway $(GATEWAY_URL)

load: setup  ## Locust's buyers in a whole shop, invariants, a report in .load/ (RATE=20 SECONDS=300 DATABASE=postgresql; OVERLOAD=1, CHAOS=1, PAGE=1)
	$(BIN)/python -m hourglass_loadtest $(if $(OVERLOAD),overload,$(if $(CHAOS),chaos,load)) $(if $(RATE),--rate $(RATE)) $(if $(SECONDS),--seconds $(SECONDS)) $(if $(DATABASE),--database $(DATABASE)) $(if $(PAGE),--page)

# Whose queue becomes tables: what the last demo left, or (FROM=load) the last load.
FROM ?= demo
LEFT_demo := .demo
LEFT_load := .load/shop
NAMESRV ?= 127.0.0.1:9876

pipeline: $(VENV)/.pipeline  ## What the last demo left (FROM=load: the last load) as tables, reconciliation and a report in .pipeline/ (Java 17)
	$(BIN)/python -m hourglass_local reopen --folder $(LEFT_$(FROM)) -- $(BIN)/python -m analytics run --namesrv-addr {namesrv} --source {source} --orders {orders} --payments {payments} --broker-lateness {lateness} --at-rest

pipeline-live: $(VENV)/.pipeline  ## The same tables' raw events for as long as it runs, from what `make up` serves (NAMESRV=host:port); metrics by OTEL_*
	$(BIN)/python -m analytics live --warehouse .pipeline-live --namesrv-addr $(NAMESRV)

# What was stored from SINCE on, read again: make backfill SINCE=2026-11-01T00:00Z
backfill: $(VENV)/.pipeline  ## Read a time of the last demo (FROM=load) again by a batch, SINCE=2026-11-01T00:00Z, and make the tables anew
	$(BIN)/python -m hourglass_local reopen --folder $(LEFT_$(FROM)) -- $(BIN)/python -m analytics backfill --from $(SINCE) --namesrv-addr {namesrv} --orders {orders} --payments {payments} --broker-lateness {lateness} --at-rest

check: setup  ## Formatting, lint and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(wildcard $(PACKAGES:%=%/src) $(PACKAGES:%=%/tests)) tests
	$(BIN)/mypy deploy/tests deploy/grafana docs/reference  # apart: each folder has a conftest

hooks:  ## Have git run make check before each commit (git commit --no-verify skips it)
	git config core.hooksPath .ci/hooks

format: setup  ## Format the code and mend what ruff can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

test: setup  ## Run the tests (needs only what setup installed)
	$(BIN)/python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder

test-system: setup  ## Run the tests that need more: PostgreSQL, Chromium, nginx, Maven and Java 17, loop devices, namespaces (REQUIRE=all: fail without)
	$(BIN)/python -m pytest --system --ignore tests/compose tests deploy loadtest  # one at a time: a network namespace keeps what is mounted on a loop device
	$(BIN)/python -m pytest --system --numprocesses 2 --dist loadfile libs services tools examples  # on PostgreSQL

test-compose: setup  ## Bring the stack of docker-compose.yml up from nothing, run the shop's story in it, take it down (needs Docker)
	$(BIN)/python -m pytest --system tests/compose

robustness: setup  ## Look for bugs by long sweeps, on all cores (HOURS=1, or SEEDS=1-20); docs/evidence/robustness.json
	$(BIN)/python tests/robustness/runner.py $(if $(HOURS),--hours $(HOURS)) $(if $(SEEDS),--seeds $(SEEDS))

zoo: setup  ## Put the bugs of the zoo back, one by one, and see a test go red for each
	$(BIN)/python tests/robustness/zoo.py

bench: setup  ## Measure the queue: throughput, latency, memory, as a table and in docs/evidence/ (some minutes)
	$(BIN)/python -m hourglass_loadtest bench

bench-micro: setup  ## Measure the hot path function by function, in docs/evidence/ (three minutes)
	$(BIN)/python -m hourglass_loadtest micro

bench-guard: setup  ## Fail when a function of the hot path executes more opcodes than in docs/evidence/opcodes.json (STORE=1: keep those of now)
	$(BIN)/python -m hourglass_loadtest guard $(if $(STORE),--store)

bench-telemetry: setup  ## What telemetry costs a producer: off, on, sampled, and without it, in docs/evidence/ (four minutes)
	$(BIN)/python -m hourglass_loadtest telemetry

bench-pipeline: setup  ## Read 2 million messages by Spark, make silver of up to 10 million events, in docs/evidence/ (about 15 minutes)
	$(BIN)/python -m hourglass_loadtest pipeline

bench-statistics: setup  ## Time GET /statistics with 300,000 orders and payments on both databases, in docs/evidence/ (some minutes)
	$(BIN)/python tests/robustness/statistics_time.py

bench-restarts: setup  ## Time starts of a broker with 20,000 queues, in docs/evidence/ (about ten minutes)
	$(BIN)/python tests/robustness/restart_time.py

$(VENV)/.peers: requirements/peers.lock $(VENV)/.development
	sh requirements/install.sh $(VENV) $<
	@touch $@

bench-peers: $(VENV)/.peers  ## Hourglass and other queues in turns, those that are installed (about 25 minutes; ONLY=word WITHOUT=word ROUNDS=3 SECONDS=2)
	$(BIN)/python -m hourglass_loadtest peers $(if $(ONLY),--only $(ONLY)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS))

first-minutes: setup  ## Time `make demo` from a fresh clone with empty caches, now and at BEFORE=commit, in docs/evidence/ (some minutes)
	$(BIN)/python tests/robustness/first_minutes.py $(if $(BEFORE),--before $(BEFORE))

shape: setup  ## Count modules, lines, imports, and the files that a send, a consume and POST /orders pass, in docs/evidence/
	$(BIN)/python tests/architecture/shape.py --out docs/evidence/shape.json

features: setup  ## Write the proofs in docs/features.md from the tests that are marked with a mechanism
	$(BIN)/python tests/architecture/features.py

docs: setup  ## Build guides, reference and runbooks into build/docs (a warning is an error)
	$(BIN)/sphinx-build -q -W --keep-going -b html -c docs/reference docs build/docs

WHEELS ?= dist
wheels: $(VENV)/.runtime  ## Build a wheel and an sdist of every library, server and tool (WHEELS=dist)
	rm -rf $(WHEELS)
	printf '%s\n' $(RUNTIME_PACKAGES) $(PIPELINE_PACKAGES) | xargs -P 2 -I FOLDER sh -c 'cd FOLDER && $(abspath $(BIN))/python -m hatchling build --directory $(abspath $(WHEELS))'

# One resolution of everything; the other layers are parts of it, with the same pins.
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
lock: setup  ## Pin what requirements/*.in names anew: every platform, with hashes
	$(COMPILE) --upgrade requirements/development.in --output-file requirements/development.lock
	for layer in runtime pipeline peers; do $(COMPILE) --upgrade --constraints requirements/development.lock requirements/$$layer.in --output-file requirements/$$layer.lock || exit 1; done
	sh requirements/install.sh $(VENV) requirements/development.lock
	$(BIN)/python deploy/docker/runtime_requirements.py

upgrade:  ## Replace the containers of docker compose one by one by what this clone has: name servers, replica, old master, the rest
	$(PYTHON) deploy/docker/upgrade.py

sbom: setup  ## Write what is in the images as CycloneDX (after docker compose build)
	$(BIN)/python deploy/docker/sbom.py hourglass-queue:0.1.0 queue.cdx.json
	$(BIN)/python deploy/docker/sbom.py hourglass-shop:0.1.0 shop.cdx.json

audit: setup  ## Ask what is known against the pinned packages; fails where no source of advisories is reached
	$(BIN)/python deploy/docker/audit.py

proto: setup  ## Generate the stubs from the .proto files
	$(BIN)/python libs/mqproto/generate_stubs.py

clean:  ## Remove what the other targets made
	rm -rf $(VENV) dist .demo .up .load .pipeline .pipeline-live .compose build .mypy_cache .ruff_cache .pytest_cache
