# Every target does its own set-up; what is already there costs seconds. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3.11
BIN := .venv/bin
STAMP := out/stamps
FORGE = $(firstword $(wildcard node_modules/@foundry-rs/forge-*/bin/forge))
KERNELS := CMakeLists.txt $(wildcard sdk/lockstep/numerics/kernels/* sdk/lockstep/protocol/native/*)

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
setup: $(STAMP)/native $(STAMP)/node ## .venv with the packages and the native extension, node_modules

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

# The npm packages carry their binaries as platform packages: no install script is needed, so none is run.
$(STAMP)/node: package-lock.json
	@mkdir -p $(STAMP)
	npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Brownie's == pins would freeze our packages, so it has an environment of its own, made when a target first needs it.
$(STAMP)/brownie: tools/constraints-brownie.txt
	@mkdir -p $(STAMP)
	test -x .venv-brownie/bin/python || $(PYTHON) -m venv .venv-brownie
	.venv-brownie/bin/pip install --quiet --constraint tools/constraints-brownie.txt eth-brownie
	@touch $@

.PHONY: clean
clean: ## remove everything that set-up and tests made
	rm -rf out .venv .venv-brownie node_modules

.PHONY: lock
lock: $(STAMP)/python ## write the versions now in .venv to tools/constraints.txt
	@{ echo '# The versions that were resolved and tested together: `make lock` writes this file anew.'; \
	  $(BIN)/pip freeze --exclude-editable 2>/dev/null | sed 's/+cpu$$//'; } > tools/constraints.txt

# -- contracts ---------------------------------------------------------------------------------------------------------------

.PHONY: contracts
contracts: setup ## compile contracts/ into sdk/lockstep/chain/abi
	$(BIN)/python tools/build_contracts.py

.PHONY: check-artifacts
check-artifacts: setup ## fail when the committed ABI and bytecode differ from contracts/
	$(BIN)/python tools/build_contracts.py --check

.PHONY: test-contracts
test-contracts: setup $(STAMP)/brownie ## the brownie tests, against an Anvil of their own
	tools/test-contracts $(BROWNIE_ARGS)

.PHONY: test-forge
test-forge: setup ## fuzz tests and invariants
	@mkdir -p out/home
	HOME=$(CURDIR)/out/home $(FORGE) test $(FORGE_ARGS)
