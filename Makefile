# Everything from a fresh machine with Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test test-all lint docs defaults mutants clean

setup: $(VENV)/.ready

$(VENV)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "OMG needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

demo: setup
	$(BIN)/omg benchmark prisoners_dilemma --budget=tiny --methods=base,omg,liam --save_replay --run_dir=demo
	@echo 'To use omg in this shell: . $(VENV)/bin/activate'

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy omg main.py

test: lint
	$(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder

test-all: lint
	XLA_FLAGS= $(BIN)/python -m pytest -n logical --maxprocesses 8 --dist loadfile --no-loadscope-reorder -m ''

# The documentation as a site of plain files in site/, English and Chinese.
docs: .venv-docs/.ready
	.venv-docs/bin/mkdocs build --strict --quiet
	@echo site/index.html

.venv-docs/.ready: docs/requirements.txt
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check -r docs/requirements.txt
	touch $@

# Writes omg/configs/default.yaml from the settings in the code.
defaults: setup
	$(BIN)/python -m omg.build

# Changes one term of a loss, target, mask or belief at a time; every change must make a test fail.
mutants: setup
	$(BIN)/python benchmarks/mutants.py

clean:
	rm -rf $(VENV) .venv-docs site results demo build dist *.egg-info
