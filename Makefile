# make quickstart   sets up .venv and trains, measures and exports a small robust encoder
# make test         sets up .venv and runs the tests
# make lint         ruff
#
# PYTHON      the interpreter that makes .venv (3.10 or later)
# TORCH_SPEC  what pip installs where .venv has no torch yet, for instance
#             TORCH_SPEC="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu"

PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
CONFIG ?= configs/quickstart.yaml

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/fastadv-installed
NATIVE_SOURCES := CMakeLists.txt $(wildcard kernels/csrc/*)

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help venv quickstart test lint clean

# Idle threads sleep. Spinning, as OpenMP does by default, several processes on few cores starve one another.
export OMP_WAIT_POLICY := PASSIVE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

help:
	@sed -n '/^$$/q;s/^# \{0,1\}//p' Makefile

venv: $(STAMP)

# The clone is installed editable: the Python code that runs is the clone's, and the native library lies in .venv. So
# only changed metadata or C++ needs another install. The constraint keeps every other package from replacing torch.
$(STAMP): pyproject.toml $(NATIVE_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install $(TORCH_SPEC)
	$(BIN)/python -c "import torch; print('torch==' + torch.__version__)" > $(VENV)/constraints.txt
	$(BIN)/python -m pip install --constraint $(VENV)/constraints.txt --editable '.[demo,test]'
	touch $@

# Without a GPU the launcher has to be told; with one DeepSpeed finds it.
quickstart: venv
	export PATH="$(CURDIR)/$(BIN):$$PATH"; \
	if ! python -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then export DS_ACCELERATOR=cpu; fi; \
	deepspeed --num_accelerators 1 fastadv/train.py --config $(CONFIG)

test: venv
	$(BIN)/python -m pytest

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build dist runs .pytest_cache .ruff_cache .hypothesis .benchmarks
