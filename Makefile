# Every target does its own set-up; what is already there costs seconds. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := out/stamps
KERNELS := CMakeLists.txt $(wildcard sdk/lockstep/numerics/kernels/*)

# One thread a process: no result depends on it, the machines that people share do.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# -- set-up ------------------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP)/native ## .venv with the packages and the native extension

$(STAMP)/venv:
	@mkdir -p $(STAMP)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@touch $@

# torch first and alone: the rest then resolves around the build that this machine has.
$(STAMP)/torch: $(STAMP)/venv tools/constraints.txt
	$(BIN)/pip install --quiet --constraint tools/constraints.txt torch
	@touch $@

$(STAMP)/python: pyproject.toml tools/constraints.txt $(STAMP)/torch
	$(BIN)/pip install --quiet --constraint tools/constraints.txt $$($(BIN)/python tools/requirements.py dev)
	@touch $@

$(STAMP)/native: $(STAMP)/python $(KERNELS)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

.PHONY: native
native: $(STAMP)/python ## rebuild the native extension
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $(STAMP)/native

.PHONY: clean
clean: ## remove everything that set-up and tests made
	rm -rf out .venv .venv-brownie node_modules

.PHONY: lock
lock: $(STAMP)/python ## write the versions now in .venv to tools/constraints.txt
	@{ echo '# The versions that were resolved and tested together: `make lock` writes this file anew.'; \
	  $(BIN)/pip freeze --exclude-editable 2>/dev/null | sed 's/+cpu$$//'; } > tools/constraints.txt
