# Everything from a bare python3 (with venv and pip) and make.
#   make reproduce   set up .venv, reproduce the paper
#   make test        set up .venv, check style, types and layers, run the tests
#   make federation  set up .venv, train over five processes with TLS and keys on this machine
#   make test-fast   for the hand: the tests of the core alone, without network, studies, attacks, pages and thousands of cases
#   make test-federation  kill, stop, cut off and deceive those processes, and compare the models: a table, at most 20 minutes
#   make test-flower-versions  the module that imports Flower, with every version of Flower that is allowed
#   make test-lowest one pass through everything with the lowest and the newest versions that we declare, each in its own environment
#   make coverage    coverage of 95 % confidence intervals over 500 simulated draws: docs/howto/inference.md (JOBS=16: in 16 processes; 8 core minutes)
#   make bench       how fast, against other engines and the machine's limit: docs/howto/performance.md (BENCH=--quick: a trial)
#   make bench-federation  seconds a round over a network at 4, 16 and 50 sites, in turns with an empty app of Flower, and light sites: 20 minutes
#   make fuzz        2,000 cases of anything at all, each refused clearly or right, and 2,000 dirty CSV files (FUZZ_SEED=7, FUZZ_CASES=5000)
#   make docs        the documentation site, into build/docs: runs the examples, checks links and pages, needs no network (docs-quick: without the examples)
#   make wheel       build dist/, install it in a new environment and run the README's example there
#   make test-all    the same with every combination of engines and every check of scikit-learn
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
# what test-fast leaves out
SLOW := $(addprefix tests/,network studies docs report fuzz attacks test_cli.py test_cli_fit.py test_wheel.py)

.PHONY: help reproduce quick federation test test-fast tests test-federation test-flower-versions test-lowest fuzz test-all check format docs docs-quick coverage bench bench-federation wheel lock clean

help:
	@sed -n 's/^#   //p' Makefile

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

reproduce: $(STAMP)
	$(BIN)/compfed reproduce

quick: $(STAMP)
	$(BIN)/compfed reproduce --quick

federation: $(STAMP)
	$(BIN)/compfed federation demo --overwrite

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pyright

# Checks of types take one core, so the tests need not wait for them.
test: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 check tests

tests: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

test-fast: $(STAMP)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile -q $(addprefix --ignore=,$(SLOW)) $(addprefix --ignore=src/compfed/,network cli studies)

test-federation: $(STAMP)
	COMPFED_FAULTS=1 $(BIN)/python -m pytest -s tests/network/test_faults.py tests/network/test_attack.py
	COMPFED_THOROUGH=1 $(BIN)/python -m pytest $(addprefix tests/network/test_,approval_over_processes.py dirty_tables.py operator_memory.py network_benchmarks.py)

test-flower-versions: $(STAMP)
	for version in 1.41.0 1.42.0; do \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target .venv/flwr-$$version flwr==$$version && \
	  PYTHONPATH=.venv/flwr-$$version $(BIN)/python -m pytest tests/network/test_flower.py || exit 1; \
	done

# Downloads 2 GB. Without .venv: each set of versions is installed into an environment of its own.
test-lowest:
	$(PYTHON) tests/declared_versions.py lowest newest

# Without FUZZ_SEED every run draws other cases; the first line says which.
fuzz: $(STAMP)
	export FUZZ_SEED=$${FUZZ_SEED:-$$(date +%s)} FUZZ_CASES=$${FUZZ_CASES:-2000}; echo "FUZZ_SEED=$$FUZZ_SEED"; \
	$(BIN)/python -m pytest --capture=no tests/fuzz

test-all: check
	COMPFED_THOROUGH=1 $(BIN)/python -m pytest --numprocesses 2 --dist loadfile

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Warnings are errors. The gallery and the figures of the methods are kept until their source changes.
docs: $(STAMP)
	$(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs/html
	COMPFED_THOROUGH=1 $(BIN)/python -m pytest -q tests/docs/test_documentation_site.py
	@echo "open build/docs/html/index.html"

docs-quick: $(STAMP)
	COMPFED_DOCS_QUICK=1 $(BIN)/python -m sphinx -b html -W --keep-going -q docs build/docs-quick/html

# BENCH=--quick tries everything out at small sizes. The peers' environments take 12 GB; who is not installed is left out.
coverage: $(STAMP)
	$(BIN)/python benchmarks/coverage.py --jobs $(or $(JOBS),1)

bench: $(STAMP)
	$(BIN)/python benchmarks/rounds.py $(BENCH)
	$(BIN)/python benchmarks/rounds.py $(BENCH) --one-device --out results/rounds-one-device.json
	$(BIN)/python benchmarks/rounds.py $(BENCH) --core-taken --out results/rounds-core-taken.json
	$(BIN)/python benchmarks/rounds.py $(BENCH) --asleep --out results/rounds-asleep.json
	$(BIN)/python benchmarks/against_peers.py $(BENCH) $(if $(BENCH),,--install)
	$(BIN)/python benchmarks/sweep.py $(BENCH)
	$(BIN)/python benchmarks/roofline.py $(BENCH)
	$(BIN)/python benchmarks/first_call.py $(BENCH)
	$(BIN)/python benchmarks/cv.py $(BENCH) $(if $(BENCH),,--install)
	$(BIN)/python benchmarks/cox.py $(BENCH) $(if $(BENCH),,--install)
	$(BIN)/python benchmarks/page.py
	$(BIN)/python benchmarks/sizes.py

bench-federation: $(STAMP)
	$(BIN)/python benchmarks/network.py --sites 16 50 --large
	$(BIN)/python benchmarks/network_clients.py
	$(BIN)/python benchmarks/network_clients.py --limit --sites 16

wheel: $(STAMP)
	rm -rf dist
	$(BIN)/python -m hatchling build --target wheel
	COMPFED_WHEEL=1 $(BIN)/python -m pytest tests/test_wheel.py

# The lock pins every package for every supported Python; each line says who asked for it.
lock:
	uv pip compile --universal --python-version 3.11 --all-extras --no-emit-index-url --no-header --output-file requirements.lock pyproject.toml

clean:
	rm -rf .venv results build docs/gallery docs/reference/api docs/reference/methods
