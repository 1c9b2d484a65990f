# Every target does all set-up that it needs, in .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test check clean

demo: $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	$(BIN)/shardwright plan llama-3-70b --cluster h100-sxm:256

test: $(VENV)/.developing
	$(BIN)/python -m pytest -n auto

check: $(VENV)/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.developing: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
