# `make demo` sets up and runs the main job, `make test` sets up and passes the tests.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help setup demo flights test thorough test-fast check lint types contracts bench lock clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: .venv/.ready ## create .venv with the package and its `watersmeet` command

.venv/.ready: pyproject.toml requirements/lock.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh

demo: setup ## flights of 2013 joined to planes, airlines and airports that change meanwhile (about two minutes)
	@$(BIN)/python examples/flights/demo.py $(ARGS)

flights: setup ## joins by time: delay against wind, arrivals and the next departures; draws delay-by-wind.png (about two minutes)
	@$(BIN)/python examples/flights/delays.py $(ARGS)

test: setup ## all tests: fast ones first, then long random ones, then those on Spark
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not spark and not slow" tests
	@WATERSMEET_THOROUGH=1 $(BIN)/python -m pytest -q -n auto --dist worksteal -m "slow and not spark" tests
	@WATERSMEET_THOROUGH=1 $(BIN)/python -m pytest -q -m spark tests

thorough: setup ## random tests with all their tries, others each time (hours)
	@WATERSMEET_THOROUGH=1 WATERSMEET_RANDOM=1 $(BIN)/python -m pytest -q -n auto --dist worksteal -m "not spark" tests

test-fast: setup ## the tests that need no Spark
	@$(BIN)/python -m pytest -q -n auto --dist worksteal -m "not spark and not slow" tests

lint: setup
	@$(BIN)/ruff check src tests benchmarks examples scripts

types: setup
	@$(BIN)/mypy

contracts: setup
	@$(BIN)/lint-imports

check: lint types contracts test ## everything that CI runs

bench: setup ## the benchmarks, each with its checks and a peer in the same run
	@$(BIN)/python -m benchmarks $(ARGS)

lock: ## pin requirements/lock.txt anew from pyproject.toml
	@sh scripts/lock.sh

clean: ## remove .venv and caches
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
