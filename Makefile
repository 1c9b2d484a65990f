# Every target does all set-up that it needs, in .venv.

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-exports check clean

demo: $(BIN)/python
	$(BIN)/python -m pip install --quiet .
	$(BIN)/shardwright plan llama-3-70b --cluster h100-sxm:256

test: $(VENV)/.developing
	$(BIN)/python -m pytest -n auto -rs

# The trainers' own parsers and groups, on a CPU: gigabytes of packages, so in an environment of its own.
# Megatron and MaxText ask for a newer Python than the code needs that is run here.
test-exports: .venv-exports/.ready
	TORCHTITAN_02=.venv-exports/torchtitan-0.2 .venv-exports/bin/python -m pytest tests/acceptance
	.venv-exports/mindspore/bin/python -m pytest tests/acceptance/test_mindspore.py tests/acceptance/test_matrix.py
	.venv-exports/mindformers/bin/python -m pytest tests/acceptance/test_mindformers.py tests/acceptance/test_matrix.py

.venv-exports/.ready: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python" >&2; exit 1; }
	$(PYTHON) -m venv .venv-exports
	.venv-exports/bin/python -m pip install --quiet --editable '.[dev,exports]'
	.venv-exports/bin/python -m pip install --quiet --no-deps --ignore-requires-python \
		megatron-core==0.19.2 megatron-bridge==0.6.2 torchtitan==0.3.0 maxtext==0.2.5
	.venv-exports/bin/python -m pip install --quiet --no-deps --target .venv-exports/torchtitan-0.2 torchtitan==0.2.2
	.venv-exports/bin/python -m pip download --quiet --no-deps --no-binary hetu-galvatron --dest .venv-exports hetu-galvatron==2.4.0
	tar xzf .venv-exports/hetu_galvatron-2.4.0.tar.gz -C .venv-exports/lib/python3.*/site-packages --strip-components=1 \
		hetu_galvatron-2.4.0/galvatron
	$(PYTHON) -m venv .venv-exports/mindspore
	.venv-exports/mindspore/bin/python -m pip install --quiet --editable '.[dev]' mindspore==2.10.0 'safetensors<0.8'
	$(PYTHON) -m venv .venv-exports/mindformers
	.venv-exports/mindformers/bin/python -m pip install --quiet --editable '.[dev]' mindspore==2.9.0 mindformers==1.9.0
	touch $@

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
	rm -rf $(VENV) .venv-exports dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
