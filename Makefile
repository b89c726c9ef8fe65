# The commands of a developer. Each target sets up what it needs, so `make test` works on a fresh machine.
#
# All targets use the virtual environment .venv. To use another one, such as the active one, name it:
# `make test VENV=$VIRTUAL_ENV`. If it has the versions of constraints.txt already, nothing is downloaded.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.trainbus-ready
DEMO_READY := $(VENV)/.trainbus-demo
FARM := .typing/trainbus
FOLDERS := engine events callbacks integrations
INSTALL = $(BIN)/python -m pip install --quiet -c constraints.txt

.PHONY: help demo test test-all check lint types links wheel torture bench docs clean

help:
	@echo "make demo     train examples/classify.py"
	@echo "make test     run most tests, in less than 10 minutes on 2 cores"
	@echo "make check    run lint, types, all tests except the slow ones, and wheel: what a change must pass"
	@echo "make torture  run the slow tests"
	@echo "make bench    compare with other libraries, and write the chart and the tables of docs/benchmarks.md"
	@echo "make docs     rewrite the generated parts of README.md and docs/"
	@echo "make clean    remove the files that the other targets made"

# fairscale and DeepSpeed are built from source with the installed torch, numpy, setuptools and wheel.
# GaLore and APOLLO depend on bitsandbytes, which only their 8-bit variants use. Hence --no-deps.
$(READY): setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --upgrade pip
	$(INSTALL) torch numpy setuptools wheel
	$(INSTALL) --no-build-isolation fairscale deepspeed
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	$(INSTALL) --no-deps galore-torch apollo-torch
	$(MAKE) links
	touch $@

# The demo installs only what its program imports. A complete environment has these packages already.
demo: $(DEMO_READY)
	$(BIN)/python examples/classify.py

$(DEMO_READY): setup.cfg pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test $(READY) -nt setup.cfg || $(INSTALL) --editable ".[examples]"
	touch $@

# All tensors in the tests are small. More threads would only wait for each other.
test test-all torture wheel bench: export OMP_NUM_THREADS ?= 1

# One process runs all tests of a file, because tests of a file share their trainings. The longest files come first:
# tests/support/scheduling.py lists them.
test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not thorough"

test-all: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile

torture: $(READY)
	$(BIN)/python -m pytest -m slow

check: lint types test-all wheel

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python tools/check_voice.py

# mypy reads paths, not installed packages, so it gets the package as a tree of links. If a link is missing, mypy checks
# fewer files and reports no error. Hence the comparison of the number of files.
types: $(READY) links
	MYPYPATH=.typing $(BIN)/python -m mypy --strict -p trainbus | tee .typing/report
	seen=$$(grep -oE '[0-9]+ source files?' .typing/report | grep -oE '[0-9]+' || echo 0); \
	total=$$(find $(FOLDERS) -name '*.py' | wc -l); \
	echo "mypy saw $$seen source files of $$total"; \
	test "$$seen" -ge "$$total"
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -m "" tests/typing

# The package as a tree of links, for mypy, pyright and editors.
links:
	mkdir -p $(FARM)
	for path in engine/_root/*.py engine/_root/py.typed; do ln -sfn ../../$$path $(FARM)/; done
	ln -sfn ../../engine/_root/testing $(FARM)/testing
	for folder in $(FOLDERS); do ln -sfn ../../$$folder $(FARM)/$$folder; done

wheel: $(READY)
	rm -rf build dist
	$(BIN)/python -m build --wheel --no-isolation . > /dev/null
	$(BIN)/python tools/try_wheel.py dist/*.whl
	rm -rf build

# One command for all benchmarks, about 40 minutes on two quiet cores. `make bench BENCH='--only growth'` runs a part.
bench: $(READY)
	$(BIN)/python benchmarks/run.py $(BENCH)

docs: $(READY)
	$(BIN)/python docs/generate.py

clean:
	rm -rf .venv .typing .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist outputs trainbus.egg-info
	find . -name __pycache__ -prune -exec rm -rf {} +
