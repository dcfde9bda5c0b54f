# Needs python3 >= 3.11 and make. Everything else is installed into .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: plan test engines test-engines test-sglang check lint types layers docs cli-docs

plan: $(VENV)/.installed
	$(BIN)/servewise plan examples/chatbot.yaml

test: $(VENV)/.installed-dev
	$(BIN)/python -m pytest

# Real engines, in environments of their own outside the checkout; 100 MB and 3.4 GB. Not part of `make check`.
engines:
	$(PYTHON) -m benchmarks.engine_installs llamacpp llama-server vllm

test-engines: $(VENV)/.installed-dev engines
	$(BIN)/python -m pytest -m engines tests/engines_real

test-sglang: $(VENV)/.installed-dev
	$(PYTHON) -m benchmarks.engine_installs sglang
	$(BIN)/python -m pytest -m sglang tests/engines_real

check: lint types layers test docs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

layers: $(VENV)/.installed-dev
	$(BIN)/lint-imports

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

cli-docs: $(VENV)/.installed-dev
	$(BIN)/python -m servewise.cli.reference > docs/cli.md

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: servewise needs python3 >= 3.11; '$(PYTHON)' is missing or older (try make PYTHON=python3.12)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# --group needs pip 25.1, which is younger than the pip of many a python3.
$(VENV)/.pip: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable . --group dev
	touch $@

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/.pip
	$(BIN)/python -m pip install --quiet --editable . --group docs
	touch $@
