# `make help` says what there is. Everything is installed into .venv, once.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
CUDA ?=
ONLY ?=
# Of nproc: OMP_NUM_THREADS is of the threads in a process, and it would take it for the number of cores.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
VENV ?= .venv
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH_OPTIONS := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
# The stamp says for what it was made. Where another PyTorch is asked for, that and what was built against it are anew.
ASKED := $(strip $(TORCH) $(TORCH_INDEX_URL) $(if $(CUDA),CUDA=$(CUDA)))
ifneq ($(strip $(filter-out file,$(origin TORCH)) $(TORCH_INDEX_URL) $(CUDA)),)
ifneq ($(wildcard $(VENV)/.torch),)
ifneq ($(shell cat $(VENV)/.torch),$(ASKED))
ANOTHER := 1
.PHONY: $(VENV)/.torch
endif
endif
endif
# One thread a process: tests run in as many processes as there are cores.
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal) \
  $(if $(WARNINGS),-W $(WARNINGS))
export CUDA

.PHONY: help install demo test gpu-emulated recipes test-fast check format matrix ways release bench gpu docs clean

help:
	@echo "make install    everything into $(VENV), as the others do first"
	@echo "make demo       install, then the plain Transformer against PASCAL on the toy corpus (3 minutes on 2 cores)"
	@echo "make test       install, then all tests, on all cores"
	@echo "make gpu-emulated  of these, those that use a GPU: on an emulated one, where there is none"
	@echo "make recipes    install, then every recipe of the papers' tables, cut down to seconds (ten minutes of a core)"
	@echo "make test-fast  install, then the quick tests: no training, no other process"
	@echo "make check      install, then ruff and mypy"
	@echo "make format     let ruff mend what it can"
	@echo "make matrix     the fast tests on every Python of PYTHONS that is there, each in .venv-PYTHON"
	@echo "make ways       every system in every way of fairseq, into docs/ways.md (half an hour)"
	@echo "make release    wheel and source distribution, each installed and tried in an environment of its own"
	@echo "make bench      install, then the measurements; ONLY=train/ for a part"
	@echo "make gpu        the tests and measures that need a GPU, and their record; MULTI30K=1 trains on Multi30k, too;"
	@echo "                EMULATED=1 tries it without a GPU"
	@echo "make docs       install, then the site in docs/_build/html; warnings are errors"
	@echo "make clean      remove .venv, the site and caches; trained models (runs/) stay"
	@echo
	@echo "Variables:   PYTHON=$(PYTHON)  TORCH='$(TORCH)'  TORCH_INDEX_URL=$(TORCH_INDEX_URL)  CUDA=$(CUDA)"
	@echo "             VENV=$(VENV)  JOBS=$(JOBS)  PYTHONS='$(PYTHONS)'"

install: $(VENV)/.package

demo: $(VENV)/.package
	$(BIN)/python -m fairseq_syntax demo

# The tests that use a GPU run apart: where there is none, an emulated one changes what PyTorch says of CUDA.
# Other modules need not be imported for that.
ON_GPU = $(PYTEST) -p emulated_cuda.pytest_plugin -m gpu $(shell grep -rl gpu tests --include='test_*.py' 2>/dev/null)
test: $(VENV)/.package
	@failed=; \
	echo '$(ON_GPU)'; $(ON_GPU) || failed=1; \
	echo '$(PYTEST) -m "not gpu"'; $(PYTEST) -m "not gpu" || failed=1; \
	test -z "$$failed"

gpu-emulated: $(VENV)/.package
	$(ON_GPU)

recipes: $(VENV)/.package
	EVERY_RECIPE=1 $(PYTEST) tests/lab/test_paper_smoke.py

test-fast: $(VENV)/.package
	$(PYTEST) -m "not slow and not gpu"

check: $(VENV)/.package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.package
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# A Python that is not there is said to be missing; one whose tests fail ends the run. Warnings are errors only with the
# versions of most tests: others have their own.
matrix:
	@set -e; for python in $(PYTHONS); do \
	  if $$python -c '' 2>/dev/null; then \
	    $(MAKE) --no-print-directory test-fast PYTHON=$$python VENV=.venv-$$python WARNINGS=default; \
	    .venv-$$python/bin/python tools/versions.py; \
	  else echo "$$python: not there"; fi; \
	done

ways: $(VENV)/.package
	OMP_NUM_THREADS=1 PYTHONPATH='$(CURDIR)' $(BIN)/python tests/helpers/ways.py --table docs/ways.md

release: $(VENV)/.package
	$(BIN)/python tools/release.py $(TORCH_OPTIONS)

bench: $(VENV)/.package
	$(BIN)/python -m bench $(ONLY)

gpu: $(VENV)/.package
	$(if $(EMULATED),EMULATED_CUDA=2 PYTHONPATH='$(CURDIR)/emulated_cuda/startup') $(BIN)/python tools/gpu.py $(if $(MULTI30K),--multi30k)

docs: $(VENV)/.package
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) .venv-python3.* docs/_build docs/generated build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a stamp, so that a later step that changes does not repeat the ones before.

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "$(PYTHON) is missing or older than 3.10: name another, as in make PYTHON=python3.11" >&2; exit 1; }
	@echo "making $(VENV)"; $(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: $(VENV)/.made tools/install_torch.py
	@$(if $(ANOTHER),rm -f $@; $(PIP) uninstall --yes torch fairseq-fixed)
	@echo "installing PyTorch ($(TORCH))"
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python tools/install_torch.py '$(TORCH)' $(TORCH_OPTIONS)
	@$(BIN)/python tools/install_torch.py --constraint > $(VENV)/constraints.txt
	@echo '$(ASKED)' > $@

# Most Pythons get fairseq-fixed as source. Without isolation it is built against the PyTorch that is there, in place
# of a second one; the constraint keeps that one when pip looks at fairseq-fixed's own requirements.
$(VENV)/.fairseq: $(VENV)/.torch
	@echo "building and installing fairseq: a minute or two"
	@$(PIP) install -c $(VENV)/constraints.txt numpy cython 'setuptools>=77,<81' wheel
	@$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation fairseq-fixed==0.12.3.1 || \
	  { echo "fairseq-fixed could not be installed; if it was being built, that needs a C++ compiler and Python's headers" >&2; exit 1; }
	@touch $@

# An environment imports one checkout: installing this one into that of another would change what the other runs.
$(VENV)/.package: $(VENV)/.fairseq setup.py pyproject.toml
	@owner=$$(cat $@ 2>/dev/null); test -z "$$owner" || test "$$owner" = '$(CURDIR)' || test ! -d "$$owner" || \
	  { echo "$(VENV) is the environment of $$owner: name another, as in make VENV=.venv" >&2; exit 1; }
	@echo "installing fairseq_syntax, and what its tests and extras need: a few minutes"
	@$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation -e '.[dev]'
	@echo '$(CURDIR)' > $@
