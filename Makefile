# Everything happens in .venv, by `python -m`, so that nothing has to be activated and the folder may move.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help run test unit lint check bench faults clean

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin/python
READY := $(VENV)/.ready

help: ## list the targets
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 10

# The stamp is made last: a half-made .venv is made anew, and a changed pyproject.toml installs again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "jobwheel needs Python 3.11 or newer; $(PYTHON) is older or not there. Try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv --clear $(VENV) > /dev/null \
	  || { rm -rf $(VENV); echo "Python's venv module is incomplete. On Debian: apt-get install python3-venv"; exit 1; }
	@echo "setting up $(VENV): once, some seconds"
	@$(BIN) -m pip install --quiet --disable-pip-version-check --editable '.[dev]' \
	  || { echo "the packages could not be installed: pip says why above"; exit 1; }
	@touch $@

run: $(READY) ## the example shop on http://127.0.0.1:8000 (PORT=... for another): seven things that happen later, to watch
	@JOBWHEEL_CONFIG=$${JOBWHEEL_CONFIG:-config/demo.yml} exec $(BIN) -m web_example

test: $(READY) ## all tests; those that need a browser or a server start them
	$(BIN) -m pytest

unit: $(READY) ## the tests without servers, browsers and stress
	$(BIN) -m pytest tests/unit tests/contract

lint: $(READY) ## format, lint, types, layers
	$(BIN) -m ruff format --check .
	$(BIN) -m ruff check .
	$(BIN) -m mypy
	$(BIN) -c 'import sys; from importlinter.cli import lint_imports_command; sys.exit(lint_imports_command())'

check: lint test ## what CI runs

bench: $(READY) ## what it costs beside APScheduler, Huey, a bare heap and bare SQLite; some minutes
	$(BIN) -m benchmarks $(ARGS)
	$(BIN) -m benchmarks durable $(ARGS)

faults: $(READY) ## the crash campaign: processes on one file, killed and stopped at any moment; some minutes
	$(BIN) tests/faults/campaign.py $(ARGS)

clean: ## remove what was made, .venv included; the example's database stays
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .coverage *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
