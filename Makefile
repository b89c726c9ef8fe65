# Everything a developer does. Each target sets up what it needs: `make test` works on a fresh machine.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
FARM := .typing/trainbus

.PHONY: demo test check torture bench docs types clean

$(VENV)/.ready: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt "torch" numpy setuptools wheel
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-build-isolation fairscale
	$(BIN)/python -m pip install --quiet -c constraints.txt --editable ".[dev]"
	touch $@

# mypy and doctest read paths, not packages: give them the package as a tree of links.
types:
	mkdir -p $(FARM)
	ln -sfn ../../engine/_root/__init__.py $(FARM)/__init__.py
	ln -sfn ../../engine/_root/py.typed $(FARM)/py.typed
	for folder in engine events callbacks integrations; do ln -sfn ../../$$folder $(FARM)/$$folder; done
