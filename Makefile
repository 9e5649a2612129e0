# `make help` says what there is. Everything is installed into .venv, once.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
CUDA ?=
ONLY ?=
VENV ?= .venv

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH_OPTIONS := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
export CUDA

.PHONY: help demo test check format bench clean

help:
	@echo "make demo    install, then the plain Transformer against PASCAL on the toy corpus (3 minutes on 2 cores)"
	@echo "make test    install, then all tests"
	@echo "make check   install, then ruff and mypy"
	@echo "make bench   install, then the measurements; ONLY=train/ for a part"
	@echo "make clean   remove .venv and what the programs wrote"
	@echo
	@echo "Variables:   PYTHON=$(PYTHON)  TORCH='$(TORCH)'  TORCH_INDEX_URL=$(TORCH_INDEX_URL)  CUDA=$(CUDA)  VENV=$(VENV)"

demo: $(VENV)/.package
	$(BIN)/python examples/toy/run.py

test: $(VENV)/.package
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

check: $(VENV)/.package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.package
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.package
	$(BIN)/python -m bench $(ONLY)

clean:
	rm -rf $(VENV) build dist *.egg-info runs .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a stamp, so that a later step that changes does not repeat the ones before.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is missing or older than 3.10: name another, as in make PYTHON=python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.made tools/check_torch.py
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python tools/check_torch.py '$(TORCH)' $(TORCH_OPTIONS)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install $(TORCH_OPTIONS) '$(TORCH)'
	@$(BIN)/python -c 'import torch; print("torch==" + torch.__version__)' > $(VENV)/constraints.txt
	@touch $@

# Most Pythons get fairseq-fixed as source. Without isolation it is built against the PyTorch that is there, in place
# of a second one; the constraint keeps that one when pip looks at fairseq-fixed's own requirements.
$(VENV)/.fairseq: $(VENV)/.torch
	$(PIP) install -c $(VENV)/constraints.txt numpy cython 'setuptools>=68,<81' wheel
	$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation fairseq-fixed==0.12.3.1 || \
	  { echo "fairseq-fixed could not be installed; if it was being built, that needs a C++ compiler and Python's headers" >&2; exit 1; }
	@touch $@

$(VENV)/.package: $(VENV)/.fairseq setup.py pyproject.toml
	$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@
