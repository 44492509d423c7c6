# Everything from a fresh machine with Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OMG needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/omg reproduce foraging --budget=demo --run_dir=demo

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy omg main.py

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

test-all: lint
	XLA_FLAGS= $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m ''

clean:
	rm -rf $(VENV) results demo build dist *.egg-info
