# Every target makes the virtual environment it needs; nothing here needs a C compiler.
#   make demo    train and compile a small classifier on handwritten digits
#   make test    ruff, pyright and the tests
# VENV names another environment (`make test VENV=/some/where`), PYTHON the interpreter it is made from.

VENV ?= .venv
PYTHON ?= python3
WORKERS ?= 2
BENCH ?=

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test lint types unit quick sweep bench clean

help:
	@sed -n 's/^#   //p' Makefile
	@echo "make quick   the tests without the slow ones;  make sweep   the exhaustive ones"
	@echo "make bench   Ingot beside its peers;           make clean   remove what these targets made"

# A stamp says which set of packages the environment holds; it lives inside it, so removing the one removes the other.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) --editable '.[$*]'
	@touch $@

demo: $(VENV)/.installed
	$(BIN)/python examples/digits.py

test: lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check --output-format concise .

types: $(VENV)/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

unit: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not sweep"

quick: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) -m "not sweep and not slow"

sweep: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n $(WORKERS) -m sweep

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks $(BENCH)

# Only the environment that make itself would choose is removed; one named with VENV= belongs to whoever named it.
clean:
	rm -rf .venv build dist ingot.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
