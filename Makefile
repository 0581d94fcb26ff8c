# From a bare checkout: `make train`, `make test`.  `make help` lists the rest.

PYTHON  ?= python3
RANKS   ?= 2
LIMIT   ?= 1800
WORKERS ?= 2
PYTEST_ARGS ?=
VENV    := .venv
BIN     := $(VENV)/bin

# The site's own MPI where there is one, else that of the mpich wheel.
MPIEXEC ?= $(or $(shell command -v mpiexec 2>/dev/null),$(shell command -v mpirun 2>/dev/null),$(BIN)/mpiexec)
comma   := ,
WHEEL   := $(filter $(BIN)/% $(abspath $(BIN))/%,$(MPIEXEC))
EXTRAS  := test,dev$(if $(WHEEL),$(comma)mpich)

# Open MPI refuses root, and more ranks than cores, unless it is told (MPICH ignores these).
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help env train test test-1 lint format repeat clean FORCE

help:            ## list the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

env: $(VENV)/installed $(VENV)/mpi  ## make .venv: the package, its tools and, if need be, MPI

train: env       ## train the default model on RANKS ranks (2) with the data in data/
	$(MPIEXEC) -n $(RANKS) $(BIN)/python -m hpctrain

# Several ranks share the cores in tests, so each has one BLAS thread.
test lint repeat: export OMP_NUM_THREADS := 1
test lint repeat: export OPENBLAS_NUM_THREADS := 1
test lint repeat: export MKL_NUM_THREADS := 1
# Tests start some four hundred interpreters: each would compile the package anew.
test lint repeat: export PYTHONDONTWRITEBYTECODE :=

test: test-1 test-2 test-3 test-4  ## run the test suite on 1, 2, 3 and 4 ranks
test-1: env      # in two processes (pytest-xdist); WORKERS=0: in one
	timeout --foreground -k 10 $(LIMIT) $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)
test-%: env
	timeout --foreground -k 10 $(LIMIT) $(MPIEXEC) -n $* $(BIN)/python -m pytest -p no:cacheprovider --color=no $(PYTEST_ARGS)

lint: env        ## check style and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: env      ## put the source into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

repeat: env      ## run the tests of engine and comm 50 times on 4 ranks, up to the first failure
	for i in $$(seq 50); do echo "round $$i"; timeout --foreground -k 10 $(LIMIT) $(MPIEXEC) -n 4 \
	  $(BIN)/python -m pytest -q -p no:cacheprovider tests/engine tests/comm || exit 1; done

clean:           ## remove caches and built files; .venv, runs and data stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .coverage*
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Installs again when the dependencies change.
$(VENV)/installed: setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "make env: $(PYTHON) is $$($(PYTHON) -V 2>&1), hpctrain needs Python 3.11 or newer; make PYTHON=/path/to/python3.11" >&2; exit 2; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
	  { echo "make env: $(PYTHON) has no ensurepip, which makes virtual environments; install python3-venv, or make PYTHON=/path/to/another" >&2; exit 2; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 2; }
	$(BIN)/python -m pip install --quiet --editable '.[$(EXTRAS)]'
	@touch $@

SIZE = from mpi4py import MPI; print(MPI.COMM_WORLD.size)
# Tries whether the launcher and mpi4py belong to the same MPI; again when MPIEXEC changes.
$(VENV)/mpi: $(VENV)/installed FORCE
	@if [ "$(MPIEXEC)" = "$$(cat $@ 2>/dev/null)" ] && [ $@ -nt $(VENV)/installed ]; then exit 0; fi; rm -f $@; \
	$(if $(WHEEL),[ -x $(BIN)/mpiexec ] || $(BIN)/python -m pip install --quiet '.[mpich]' || exit 2;) \
	said=$$(timeout --foreground -k 10 60 $(MPIEXEC) -n 2 $(BIN)/python -c '$(SIZE)' 2>&1 | tr -s '[:space:]' ' ' | cut -c 1-200); \
	case "$$said" in "2 2 "|"22 "|"22  ") echo "$(MPIEXEC)" > $@; exit 0;; esac; \
	echo "make env: two ranks started by $(MPIEXEC) said '$$said', needed '2 2'; load the module that this launcher belongs to, or" \
	  "build mpi4py for it ($(BIN)/pip install --force-reinstall --no-cache-dir --no-binary=mpi4py mpi4py), or take MPICH's wheel" \
	  "(rm -r $(VENV); make env MPIEXEC=$(BIN)/mpiexec)" >&2; exit 2
FORCE:
