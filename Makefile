# `make demo` sets up and runs the main job, `make test` sets up and passes the tests.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest -q --durations=20 --durations-min=5
PARALLEL := -n auto --dist worksteal
# What the text tests run through is tested part by part, and TPC-H and Nexmark in full, in `make test`.
BACK := $(addprefix unit/,cli frames kernel runtime session store) nexmark tpch

# The steps of `check` one after another with `make -j`, too: each takes all cores.
.NOTPARALLEL:
.PHONY: help setup demo flights kafka kafka-demo shop-demo examples databases test test-fast test-more thorough soak check lint format types contracts bench docs release lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .venv/.ready ## create .venv with the package and its `watersmeet` command

.venv/.ready: pyproject.toml requirements/lock.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

demo: setup ## flights of 2013 joined to planes, airlines and airports that change meanwhile (about two minutes)
	@PYTHONPATH=. $(BIN)/python examples/flights/demo.py $(ARGS)

flights: setup ## joins by time: delay against wind, arrivals and the next departures; draws delay-by-wind.png (about two minutes)
	@PYTHONPATH=. $(BIN)/python examples/flights/delays.py $(ARGS)

kafka-demo: setup ## flights and planes through a real Kafka broker, results in a topic and in Parquet; draws a chart (about two minutes)
	@PYTHONPATH=. $(BIN)/python examples/flights/kafka.py $(ARGS)

shop-demo: setup ## orders from Kafka, customers and prices that change in PostgreSQL, results in PostgreSQL, Delta and Iceberg; draws a chart (about two minutes)
	@PYTHONPATH=. $(BIN)/python examples/shop/demo.py $(ARGS)

examples: setup ## projects of the four systems in their own SQL, side by side, compared with DuckDB (about two minutes)
	@PYTHONPATH=. $(BIN)/python examples/projects.py $(ARGS)

kafka: setup ## a Kafka broker on loopback until Ctrl-C; ARGS=--registry: a schema registry, too
	@$(BIN)/python -m scripts.servers kafka $(ARGS)

databases: setup ## PostgreSQL, MariaDB, S3 and an Iceberg catalog on loopback until Ctrl-C
	@$(BIN)/python -m scripts.servers databases

test-fast: setup ## text tests, the front end, one seed of each law (times of tests: docs/TESTING.md)
	@WATERSMEET_TIER=fast $(PYTEST) $(PARALLEL) -m "not spark and not slow and not kafka and not postgres and not mysql and not clickhouse and not objectstores and not browser" tests $(addprefix --ignore=tests/,$(BACK))

test: setup ## all that shows that everything works, Spark included
	@WATERSMEET_TIER=test $(PYTEST) $(PARALLEL) -m "not slow" tests

test-more: setup ## the slow rest, and more of what is random
	@WATERSMEET_TIER=more $(PYTEST) $(PARALLEL) -m "slow or hypothesis" tests

thorough: setup ## all tests with all their tries, and fresh seeds each time, then a soak; ARGS=tests/slt: a part alone
	@WATERSMEET_TIER=thorough $(PYTEST) $(PARALLEL) -o faulthandler_timeout=3600 $(or $(ARGS),tests)
	@$(if $(ARGS),,$(BIN)/python -m tests.soak --minutes 60 --rate 20)

soak: setup ## a database under load and faults must stay right and flat: ARGS="--minutes 30 --shared-machine"
	@$(BIN)/python -m tests.soak $(ARGS)

lint: setup
	@$(BIN)/ruff format --check --quiet src tests benchmarks examples scripts || { echo "format: run make format"; exit 1; }
	@$(BIN)/ruff check src tests benchmarks examples scripts

format: setup ## format the code
	@$(BIN)/ruff format src tests benchmarks examples scripts

types: setup
	@$(BIN)/mypy

contracts: setup
	@$(BIN)/lint-imports

check: lint types contracts ## everything that CI runs: what `make test` does, and a sample of `make test-more`
	@WATERSMEET_TIER=check $(PYTEST) $(PARALLEL) tests

bench: setup ## the benchmarks, each with its checks and a peer in the same run
	@$(BIN)/python -m benchmarks $(ARGS)

docs: ## build the site of the documentation into build/site, with an API reference and offline search
	@PYTHON="$(PYTHON)" sh scripts/docs.sh

release: ## build the sdist and the wheel into dist/, and try them in a fresh environment
	@PYTHON="$(PYTHON)" sh scripts/release.sh

lock: ## pin requirements/*.txt again
	@sh scripts/lock.sh

clean: ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
