# Every target sets up first; that costs nothing once it is done. PYTHON=… chooses the interpreter of the set-up.
SHELL := /bin/bash
BIN := .venv/bin
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-quick lint format types layers docs wheel clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup:  ## Make .venv and install the pinned dependencies
	@.ci/setup

quickstart: setup  ## Warm-start a small model and train it asynchronously (under 8 minutes on 2 cores)
	$(BIN)/async-rl sft configs/quickstart-sft.yaml
	$(BIN)/async-rl launch configs/quickstart.yaml

test: setup  ## Run all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-quick: setup  ## Run the tests that start no engine, Megatron or Ray
	$(BIN)/python -m pytest -m "not integration" $(PYTEST_ARGS)

lint: setup  ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup  ## Mend what the linter and the formatter can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup  ## Check types
	$(BIN)/mypy

layers: setup  ## Check who imports whom
	$(BIN)/lint-imports

docs: setup  ## Run the commands that README.md and docs/ show
	$(BIN)/python -m pytest tests/docs

wheel: setup  ## Build the wheel into dist/
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .

clean:  ## Remove caches and builds; runs/, models/ and .venv stay
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
