# `make help` lists the targets. Everything is installed into .venv, once.

PYTHON ?= python3
TORCH ?= torch==2.13.0
TORCH_INDEX_URL ?=
# Or a checkout of fairseq, after tools/patch_fairseq.py.
FAIRSEQ ?= fairseq-fixed==0.12.3.1
CUDA ?=
ONLY ?=
# The part of each matrix of cases that tests try: a seed, or all (default: another part in each run).
CASES ?=
# nproc would report OMP_NUM_THREADS, the number of threads in a process, as the number of cores.
JOBS ?= $(shell env -u OMP_NUM_THREADS nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
VENV ?= .venv
PYTHONS ?= python3.10 python3.11 python3.12 python3.13

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
TORCH_OPTIONS := $(if $(TORCH_INDEX_URL),--index-url $(TORCH_INDEX_URL))
# The stamp records the requested PyTorch. If another is requested, it and what was built against it are reinstalled.
ASKED := $(strip $(TORCH) $(TORCH_INDEX_URL) $(if $(CUDA),CUDA=$(CUDA)))
ifneq ($(strip $(filter-out file,$(origin TORCH)) $(TORCH_INDEX_URL) $(CUDA)),)
ifneq ($(wildcard $(VENV)/.torch),)
ifneq ($(shell cat $(VENV)/.torch),$(ASKED))
ANOTHER := 1
.PHONY: $(VENV)/.torch
endif
endif
endif
# Likewise for fairseq.
ifneq ($(filter-out file,$(origin FAIRSEQ)),)
ifneq ($(wildcard $(VENV)/.fairseq),)
ifneq ($(shell cat $(VENV)/.fairseq),$(FAIRSEQ))
OTHER_FAIRSEQ := 1
.PHONY: $(VENV)/.fairseq
endif
endif
endif
# One thread per process: tests run in as many processes as there are cores. Each starts others, which would compile all
# that they import again if no bytecode were written.
PYTEST = env -u PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist worksteal) \
  $(if $(WARNINGS),-W $(WARNINGS)) $(if $(CASES),--cases $(CASES))
export CUDA

.PHONY: help install demo test test-all gpu-emulated recipes test-fast check format matrix ways release bench peers gpu docs clean

help:
	@echo "make install    install everything into $(VENV); all other targets do this first"
	@echo "make demo       train the plain Transformer and PASCAL on a toy corpus (3 minutes on 2 cores)"
	@echo "make test       run the tests on all cores, a part of each long matrix and of slow tests of a kind (CASES=SEED: this)"
	@echo "make test-all   the same with all cases and all recipes, as before a release (half an hour)"
	@echo "make gpu-emulated  run those of them that use a GPU, or an emulated one"
	@echo "make recipes    run all recipes of the papers' tables, reduced to seconds (ten minutes of a core)"
	@echo "make test-fast  run the tests that neither train nor start other processes"
	@echo "make check      run ruff and mypy"
	@echo "make format     reformat with ruff"
	@echo "make matrix     run the fast tests on each installed Python in PYTHONS, in .venv-PYTHON"
	@echo "make ways       try every system with every option of fairseq, and write docs/ways.md (half an hour);"
	@echo "                ROWS=NAME tries one system, in a minute or two"
	@echo "make release    build wheel and source distribution, and try each in a new environment"
	@echo "make bench      run the benchmarks; ONLY=train/ selects some"
	@echo "make peers      train and search beside eole, Hugging Face and Joey NMT, and write their table (half an hour);"
	@echo "                DATA=DIR has Multi30k's files, or gets them; SMOKE=1 tries it"
	@echo "make gpu        run and record the tests and benchmarks that need a GPU; MULTI30K=1 also trains on Multi30k;"
	@echo "                EMULATED=1 tries it without a GPU"
	@echo "make docs       build the site in docs/_build/html; warnings are errors"
	@echo "make clean      remove .venv, the site and caches, but not trained models (runs/)"
	@echo
	@echo "Variables:   PYTHON=$(PYTHON)  TORCH='$(TORCH)'  TORCH_INDEX_URL=$(TORCH_INDEX_URL)  CUDA=$(CUDA)"
	@echo "             FAIRSEQ='$(FAIRSEQ)'"
	@echo "             VENV=$(VENV)  JOBS=$(JOBS)  CASES=$(CASES)  PYTHONS='$(PYTHONS)'"

install: $(VENV)/.package

demo: $(VENV)/.package
	$(BIN)/python -m fairseq_syntax demo

# Tests that use a GPU run separately, because the emulated device changes what PyTorch reports about CUDA. Only modules
# with such tests are imported.
ON_GPU = $(PYTEST) -p emulated_cuda.pytest_plugin -m gpu $(shell grep -rl 'mark\.gpu' tests --include='test_*.py' 2>/dev/null)
test: $(VENV)/.package
	@failed=; \
	echo '$(ON_GPU)'; $(ON_GPU) || failed=1; \
	echo '$(PYTEST) -m "not gpu"'; $(PYTEST) -m "not gpu" || failed=1; \
	test -z "$$failed"

test-all:
	EVERY_RECIPE=1 $(MAKE) --no-print-directory test CASES=all

gpu-emulated: $(VENV)/.package
	$(ON_GPU)

recipes: $(VENV)/.package
	EVERY_RECIPE=1 $(PYTEST) --cases all tests/lab/test_paper_smoke.py

test-fast: $(VENV)/.package
	$(PYTEST) -m "not slow and not gpu"

check: $(VENV)/.package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(VENV)/.package
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Missing Pythons are reported, and that all are missing is a failure, which ends the run. Warnings are errors only with
# the default versions, since others have their own.
matrix:
	@set -e; ran=; for python in $(PYTHONS); do \
	  if $$python -c '' 2>/dev/null; then ran=1; \
	    $(MAKE) --no-print-directory test-fast PYTHON=$$python VENV=.venv-$$python WARNINGS=default; \
	    .venv-$$python/bin/python tools/versions.py; \
	  else echo "$$python: not there"; fi; \
	done; test -n "$$ran"

ways: $(VENV)/.package
	OMP_NUM_THREADS=1 PYTHONPATH='$(CURDIR)' $(BIN)/python tests/helpers/ways.py --page docs/ways.md $(if $(ROWS),--rows $(ROWS))

release: $(VENV)/.package
	$(BIN)/python tools/release.py $(TORCH_OPTIONS)

bench: $(VENV)/.package
	$(BIN)/python -m bench $(ONLY)

peers: $(VENV)/.package
	$(BIN)/python -m bench.peers --data '$(or $(DATA),runs/multi30k)' $(if $(SMOKE),--smoke)

gpu: $(VENV)/.package
	$(if $(EMULATED),EMULATED_CUDA=2 PYTHONPATH='$(CURDIR)/emulated_cuda/startup') $(BIN)/python tools/gpu.py $(if $(MULTI30K),--multi30k)

docs: $(VENV)/.package
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

clean:
	rm -rf $(VENV) .venv-python3.* docs/_build docs/generated build dist *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each step leaves a stamp, so that a change in a later step does not repeat earlier ones.

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

# For most Pythons, fairseq-fixed is only available as source. Without isolation it is built against the installed
# PyTorch rather than a second one; the constraint keeps this version when pip resolves fairseq-fixed's requirements.
$(VENV)/.fairseq: $(VENV)/.torch
	@$(if $(OTHER_FAIRSEQ),rm -f $@; $(PIP) uninstall --yes fairseq-fixed)
	@echo "building and installing fairseq: a minute or two"
	@$(PIP) install -c $(VENV)/constraints.txt numpy cython 'setuptools>=77,<81' wheel
	@$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation '$(FAIRSEQ)' || \
	  { echo "$(FAIRSEQ) could not be installed; if it was being built, that needs a C++ compiler and Python's headers" >&2; exit 1; }
	@echo '$(FAIRSEQ)' > $@

# An environment imports one checkout. Installing this checkout into another's environment would change what that runs.
$(VENV)/.package: $(VENV)/.fairseq setup.py pyproject.toml
	@owner=$$(cat $@ 2>/dev/null); test -z "$$owner" || test "$$owner" = '$(CURDIR)' || test ! -d "$$owner" || \
	  { echo "$(VENV) is the environment of $$owner: name another, as in make VENV=.venv" >&2; exit 1; }
	@echo "installing fairseq_syntax, and what its tests and extras need: a few minutes"
	@$(PIP) install -c $(VENV)/constraints.txt --no-build-isolation -e '.[dev]'
	@# fairseq requires torchaudio, of which this package needs nothing. One that does not load beside this PyTorch
	@# would keep transformers from importing its models.
	@$(BIN)/python -c 'import torchaudio' 2>/dev/null || $(PIP) uninstall --yes torchaudio
	@echo '$(CURDIR)' > $@
