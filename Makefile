# Every target does its own set-up; what is already there costs nothing. `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

# Test processes at a time; files, not tests, are dealt out, so that a file keeps its one chain. Tests wait for processes
# and clocks a part of their time: more than a small machine's cores.
JOBS ?= 4
# RESUME=1: only what has not passed on this commit. RECORD=1: write down what each file took, by which files are dealt.
RESUME ?=
RECORD ?=
REPEAT ?=
PYTEST_ARGS ?=
SHARDS = $(BIN)/python -m tests.shards --jobs $(JOBS) $(if $(RESUME),--resume) $(if $(RECORD),--record)
FUZZ_SECONDS ?= 60
HISTORIES ?= 1000
# How long random Programs run on every way there is: a number of cases, or of seconds.
CASES ?=
SECONDS ?= 60
DIFFER_LIMIT = $(if $(CASES),--cases $(CASES),--seconds $(SECONDS))
DIFFER_ARGS ?=
SEARCH_SEED ?= 0
PYTHON ?= $(firstword $(shell command -v python3.11 python3))
BIN := .venv/bin
UV := $(BIN)/uv pip install --quiet
STAMP := out/stamps
FORGE = $(firstword $(wildcard node_modules/@foundry-rs/forge-*/bin/forge))
NATIVE := CMakeLists.txt $(wildcard sdk/lockstep/numerics/kernels/* sdk/lockstep/numerics/kernels/*/* sdk/lockstep/protocol/native/*)

# One thread a process: no result depends on it, and the processes of a demo share the machine.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A fresh environment holds no compiled modules: without them every process of a test or a demo compiles what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# -- set-up ------------------------------------------------------------------------------------------------------------------

.PHONY: setup
setup: $(STAMP)/native $(STAMP)/node ## .venv with the packages and the native extensions; node_modules

$(STAMP)/venv: tools/check_machine.py
	@$(PYTHON) tools/check_machine.py
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint tools/constraints.txt uv
	@mkdir -p $(STAMP) && touch $@

# torch first and alone, and by pip, which also looks where a machine keeps a build of its own: the rest then resolves
# around that.
$(STAMP)/torch: $(STAMP)/venv tools/constraints.txt
	$(BIN)/pip install --quiet --constraint tools/constraints.txt torch
	@touch $@

$(STAMP)/python: $(STAMP)/torch pyproject.toml tools/constraints.txt tools/requirements.py
	$(BIN)/python tools/requirements.py dev > out/requirements.txt
	$(UV) --python .venv --constraint tools/constraints.txt --requirement out/requirements.txt
	@touch $@

$(STAMP)/native: $(STAMP)/python $(NATIVE)
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

# The npm packages carry their binaries as platform packages: no install script is needed, so none is run. Not `npm ci`: it
# refuses a lock without every platform's package, and registries carry only some of Foundry's.
$(STAMP)/node: package-lock.json $(STAMP)/venv
	npm install --no-save --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Brownie's == pins would freeze our packages, so it has an environment of its own, made when a target first needs it.
$(STAMP)/brownie: tools/constraints-brownie.txt $(STAMP)/venv
	test -x .venv-brownie/bin/python || $(PYTHON) -m venv --without-pip .venv-brownie
	$(UV) --python .venv-brownie --constraint tools/constraints-brownie.txt eth-brownie
	@touch $@

# So do slither's.
$(STAMP)/slither: tools/constraints-slither.txt $(STAMP)/venv
	test -x .venv-slither/bin/python || $(PYTHON) -m venv --without-pip .venv-slither
	$(UV) --python .venv-slither --constraint tools/constraints-slither.txt slither-analyzer
	@touch $@

.PHONY: native
native: $(STAMP)/python ## rebuild the native extensions
	$(BIN)/pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $(STAMP)/native

.PHONY: lock
lock: $(STAMP)/python ## write the versions now in .venv to tools/constraints.txt
	@{ echo '# The versions that were resolved and tested together: `make lock` writes this file anew.'; \
	  $(BIN)/pip freeze --exclude-editable 2>/dev/null | sed 's/+cpu$$//'; } > out/constraints.txt
	mv out/constraints.txt tools/constraints.txt

.PHONY: clean
clean: ## remove everything that set-up and tests made
	rm -rf out .venv .venv-brownie .venv-slither node_modules

# -- run ---------------------------------------------------------------------------------------------------------------------

.PHONY: demo
demo: ## set-up, then the demo: train, catch the liar, slash, pay (DEMO_ARGS="--cheat one-ulp ...")
	@start=$$(date +%s); $(MAKE) --no-print-directory setup; echo "set-up: $$(( $$(date +%s) - start )) s" >&2
	@$(BIN)/lockstep demo $(DEMO_ARGS)

.PHONY: demo-all
demo-all: setup ## the demo once for each lie
	@for cheat in $$($(BIN)/python -c 'from lockstep.demo.run import CHEATS; print(*CHEATS)'); do echo "== $$cheat" >&2; $(BIN)/lockstep demo --cheat $$cheat $(DEMO_ARGS); done

# -- check -------------------------------------------------------------------------------------------------------------------

.PHONY: lint
lint: setup ## style, types, who may import whom
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check-types check-strict check-style

.PHONY: check-types check-strict check-style
check-types:
	$(BIN)/mypy
check-strict:
	$(BIN)/mypy --strict --cache-dir out/mypy-strict sdk/lockstep/protocol sdk/lockstep/numerics
check-style:
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports --no-logo --cache-dir out/import-linter
	$(BIN)/python tools/rooms.py
	$(BIN)/python tools/reference.py --check

.PHONY: reference
reference: setup ## write docs/reference anew: commands, settings and errors, from the code
	$(BIN)/python tools/reference.py

.PHONY: test test-solidity test-python
test: setup $(STAMP)/brownie ## every test but the slow ones: brownie, forge and Python (RESUME=1: of Python, what has not passed)
	@$(MAKE) --no-print-directory --jobs 3 test-python test-solidity
test-python:
	$(SHARDS) quick -- $(PYTEST_ARGS)
# forge compiles on one core for most of its time, and so does brownie: Python's tests take the others.
test-solidity:
	@$(MAKE) --no-print-directory --output-sync=target test-contracts test-forge

.PHONY: test-slow
test-slow: setup ## the tests that take minutes; goes on after failures (RESUME=1: what has not passed)
	@red=0; $(SHARDS) slow -- $(PYTEST_ARGS) || red=1; \
	$(MAKE) --no-print-directory test-forge FOUNDRY_PROFILE=slow || red=1; \
	$(MAKE) --no-print-directory test-contracts BROWNIE_PROFILE= || red=1; exit $$red

.PHONY: test-repeated
test-repeated: setup $(STAMP)/brownie ## `make test` ten times, five of them beside eight busy processes (REPEAT="--runs 3 --loaded 0 test-slow": others)
	$(BIN)/python tools/repeat_tests.py $(REPEAT)

.PHONY: coverage
coverage: setup ## lines and branches that the Python tests reach but for whole markets; an hour
	$(SHARDS) coverage -- $(PYTEST_ARGS)

.PHONY: test-words
test-words: setup ## every path of every unary primitive on all 2^32 words: about an hour
	$(BIN)/pytest -n 0 -s -m words $(PYTEST_ARGS)

.PHONY: test-long
test-long: setup ## a thousand steps on the emulated device, every planted defect of the kernels: minutes of a processor each
	@$(SHARDS) long -- $(PYTEST_ARGS)

.PHONY: test-faults
test-faults: setup ## markets whose processes are killed, cut off, and short of disk, on twenty schedules: half an hour
	$(BIN)/pytest -n $(JOBS) -s -m faults $(PYTEST_ARGS)

.PHONY: search
search: setup ## HISTORIES=n: coalitions against the honest programs' decisions; each known hole is found again without its fix
	@$(BIN)/python -m tests.search --histories $(HISTORIES) --seed $(SEARCH_SEED)

.PHONY: test-memory
test-memory: setup ## HISTORIES=n: random histories of all contracts, on Anvil and on the chain in memory
	LOCKSTEP_HISTORIES=$(HISTORIES) $(BIN)/pytest -n 0 -s -q -m slow tests/differential/test_memory.py $(PYTEST_ARGS)

.PHONY: test-size
test-size: setup ## markets of models of real size, one after the other: 20 GB of memory, many minutes
	$(BIN)/pytest -n 0 -s -m size $(PYTEST_ARGS)

# axe-core judges how accessible a page is; Chromium is the system's own.
$(STAMP)/pages: tools/constraints.txt $(STAMP)/python
	$(BIN)/pip install --quiet --constraint tools/constraints.txt playwright
	npm install --prefix out/axe --no-save --ignore-scripts --no-audit --no-fund --loglevel=error axe-core@4.14.1
	@touch $@

.PHONY: test-pages
test-pages: setup $(STAMP)/pages ## the coordinator's pages in Chromium (apt-get install chromium): errors, axe, weight, speed
	$(BIN)/pytest -n 0 -s -m pages tests/pages $(PYTEST_ARGS)

.PHONY: screenshots
screenshots: setup $(STAMP)/pages ## every page, light, dark and on a phone, into out/pages; those of the documents into docs
	$(BIN)/pytest -n 0 -s -m pages tests/pages -k "every_look" $(PYTEST_ARGS)
	cp out/pages/dispute-above.png docs/pages-dispute.png

.PHONY: check-vendored
check-vendored: setup ## the pages' libraries against their npm packages, byte by byte
	$(BIN)/python tools/vendored.py

.PHONY: test-clang
test-clang: setup ## the golden hash on a build by clang++
	$(BIN)/pytest -m slow tests/determinism/test_golden.py::test_a_clang_build_ends_in_the_golden_state $(PYTEST_ARGS)

.PHONY: test-neon
test-neon: setup ## the kernels for AArch64, cross-compiled and emulated: the numerics' tests, models' steps (NEON_TESTS="..." others)
	tools/test-neon

test-contracts: BROWNIE_PROFILE ?= quick
.PHONY: test-contracts
test-contracts: setup $(STAMP)/brownie ## the brownie tests, against an Anvil of their own (BROWNIE_PROFILE=: optimised)
	BROWNIE_PROFILE=$(BROWNIE_PROFILE) tools/test-contracts $(BROWNIE_ARGS)

$(STAMP)/ganache: tools/test-ganache $(STAMP)/venv
	npm install --prefix out/ganache --no-save --ignore-scripts --no-audit --no-fund --loglevel=error ganache@7.9.2
	@touch $@

.PHONY: test-ganache
test-ganache: setup $(STAMP)/brownie $(STAMP)/ganache ## the brownie tests on Ganache 7, hardfork Shanghai
	tools/test-ganache $(BROWNIE_ARGS)

test-forge: FOUNDRY_PROFILE ?= quick
.PHONY: test-forge
test-forge: setup ## fuzz tests, invariants, and the table of rules (FOUNDRY_PROFILE=slow: optimised, hundreds of fuzz runs)
	@mkdir -p out/home
	$(BIN)/python -m tests.rules out/rules
	HOME=$(CURDIR)/out/home LOCKSTEP_RECORDINGS=out/rules FOUNDRY_PROFILE=$(FOUNDRY_PROFILE) $(FORGE) test $(FORGE_ARGS)

.PHONY: test-cheats
test-cheats: setup ## every cheat, played to its end on Anvil, in one table (CHEATS_ARGS="one-ulp": some)
	$(BIN)/python -m tests.adversarial --table $(CHEATS_ARGS)

.PHONY: test-honest
test-honest: setup ## the roles' tests on a wheel without the demo: what lies is not in the programs
	rm -rf out/honest && mkdir -p out/honest
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir out/honest .
	$(BIN)/python -m zipfile -e out/honest/*.whl out/honest/site
	rm -r out/honest/site/lockstep/demo
	@# The installation in place comes before PYTHONPATH: what it adds is left out.
	echo 'import sys; sys.meta_path[:] = [f for f in sys.meta_path if "editable" not in type(f).__module__]' \
	  > out/honest/site/sitecustomize.py
	cd out/honest && PYTHONPATH=site ../../$(BIN)/python -c "import importlib.util, lockstep; \
	  assert 'honest' in lockstep.__file__; assert importlib.util.find_spec('lockstep.demo') is None"
	PYTHONPATH=$(CURDIR)/out/honest/site $(BIN)/pytest -q -n $(JOBS) tests/unit/worker tests/unit/verifier tests/unit/coordinator tests/unit/market tests/unit/runtime tests/unit/disputes

.PHONY: test-games
test-games: setup ## 100,000 games on the pure rules, 10,000 and more in forge, 1,000 on both with every move compared
	$(BIN)/python -m tests.property.games --games 100000
	@mkdir -p out/home
	HOME=$(CURDIR)/out/home FOUNDRY_FUZZ_RUNS=2500 $(FORGE) test --match-contract '^GamesTest$$'
	$(BIN)/python -m tests.differential.test_random_games --games 1000

.PHONY: fuzz
fuzz: setup ## every decoder of bytes from outside, FUZZ_SECONDS each: executions, branches, crashes (FUZZ_ARGS="spec": some)
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS) --jobs $(JOBS) $(FUZZ_ARGS)

.PHONY: fuzz-planted
fuzz-planted: setup ## the seconds that the fuzzers need to find a defect planted in each decoder
	$(BIN)/python -m tests.fuzz --planted --seconds $(FUZZ_SECONDS) --jobs $(JOBS) $(FUZZ_ARGS)

.PHONY: test-differ
test-differ: setup ## SECONDS=n or CASES=n: random Programs on every kernel path, thread count and form, against numpy's bits
	$(BIN)/python -m tests.differ $(DIFFER_LIMIT) $(DIFFER_ARGS)

.PHONY: test-small
test-small: setup ## the same on kernels whose limits of size are small, so that small cases go the ways of large tensors
	$(BIN)/python -m tests.differ small $(DIFFER_LIMIT) $(DIFFER_ARGS)

.PHONY: test-sanitized
test-sanitized: setup ## the same on kernels built with ASAN and UBSAN, each op's output in memory of its own
	$(BIN)/python -m tests.differ sanitized $(DIFFER_LIMIT) $(DIFFER_ARGS)

.PHONY: differ-planted
differ-planted: setup ## the seconds that the random Programs need to find each of some twenty defects planted in the kernels
	$(BIN)/python -m tests.differ planted $(if $(CASES),--cases $(CASES)) $(DIFFER_ARGS)

.PHONY: differ-covered
differ-covered: setup ## the lines and branches of the planner that the random Programs never reach (gcc 12 or later)
	$(BIN)/python -m tests.differ covered $(DIFFER_LIMIT) $(DIFFER_ARGS)

# -- contracts ---------------------------------------------------------------------------------------------------------------

.PHONY: contracts
contracts: setup ## compile contracts/ into sdk/lockstep/chain/abi
	$(BIN)/python tools/build_contracts.py

.PHONY: recordings
recordings: setup $(STAMP)/brownie ## record the tests that run on a chain into out/recordings, for forge to repeat
	tools/record-chains

.PHONY: contract-coverage
contract-coverage: recordings ## lines and branches of contracts/ that forge's tests and the recorded chains reach
	$(BIN)/python tools/contract_coverage.py

.PHONY: slither
slither: setup $(STAMP)/slither ## static analysis of contracts/: no high or medium finding without its explanation
	$(BIN)/python tools/check_slither.py

.PHONY: gas-snapshot
gas-snapshot: setup ## the gas of every verb, from receipts, into tests/vectors/gas.json
	$(BIN)/python -m tests.support.gas
	$(BIN)/python -m tests.support.costs

.PHONY: mutation
mutation: setup ## a seeded sample of mutants of the contracts, against the tests (after `make recordings`; minutes to hours)
	$(BIN)/python -m tests.mutation.campaign $(MUTATION_ARGS)

.PHONY: softfloat
softfloat: setup ## Float32.sol on a million vectors and a reduced format in full, every operation
	$(BIN)/python -m tests.primitives.on_chain --vectors 1000000 --reduced

.PHONY: test-codes
test-codes: setup ## groups of codes against exact integers: 10^7 on every path, 10^5 on the EVM
	$(BIN)/python -m tests.differential.test_codes --groups 10000000 --on-chain 100000

.PHONY: check-artifacts
check-artifacts: setup ## fail when the committed ABI and bytecode differ from contracts/
	$(BIN)/python tools/build_contracts.py --check
