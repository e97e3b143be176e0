# make help says what there is. Everything works in a fresh clone.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

SUPPORTED := -c 'import sys; sys.exit(not (3, 9) <= sys.version_info[:2] <= (3, 11))'

# The first Python that runs and is neither too old nor too new. A name on the
# PATH proves nothing: pyenv puts names there that only complain.
ifndef PYTHON
PYTHON := $(shell for python in python3.11 python3.10 python3.9 python3 python; do \
  if $$python $(SUPPORTED) >/dev/null 2>&1; then command -v $$python; break; fi; done)
endif

# Arguments of pytest: make test PYTEST='-q tests/cli'. Tests of one file stay
# in one process, and share what they made. With MARK=core only those that are
# marked so.
PYTEST ?= -q --numprocesses auto --maxprocesses 4 --dist loadfile \
  --no-loadscope-reorder
MARK ?= not full
# glibc gives memory back to the system late: graphs are made and thrown away all
# the time, and half of the system's time went to getting the same pages again.
# Processes that tests start have it too; other C libraries read none of it.
test test-full test-tf215 check pages: export MALLOC_TRIM_THRESHOLD_ := 1000000000
test test-full test-tf215 check pages: export MALLOC_TOP_PAD_ := 67108864
test test-full test-tf215 check pages: export MALLOC_MMAP_THRESHOLD_ := 33554432
# Tests with their assertions written out are kept as bytecode, whatever the
# environment says: to make it takes each process as long as TensorFlow's import.
test test-full test-tf215 check: export PYTHONDONTWRITEBYTECODE :=
PIP := -m pip --disable-pip-version-check install -qq
TF215 := tensorflow==2.15.1

# $(call environment,FOLDER): makes a virtual environment unless a good one is
# there. One whose Python is gone, or was never supported, is made again.
define environment
if ! $(1)/bin/python $(SUPPORTED) >/dev/null 2>&1; then \
  "$(PYTHON)" $(SUPPORTED) >/dev/null 2>&1 || { echo \
    'tfdpflows needs Python 3.9, 3.10 or 3.11: install python3.11, or name one with make PYTHON=/path/to/python3.11' \
    >&2; exit 2; }; \
  "$(PYTHON)" -c 'import ensurepip, venv' >/dev/null 2>&1 || { echo \
    '$(PYTHON) makes no virtual environments: install its venv package (on Debian: apt-get install python3-venv)' \
    >&2; exit 2; }; \
  echo 'Making $(1) with $(PYTHON).'; \
  rm -rf $(1); "$(PYTHON)" -m venv $(1); \
fi
endef

.PHONY: help
help: ## Say what there is
	@grep -E '^[a-z0-9-]+:.*## ' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 20

# A stamp per set of extras. They depend on setup.py alone, so that nothing is
# installed again until what is needed changes.
.venv/stamp-%: setup.py
	@$(call environment,.venv)
	@echo 'Installing tfdpflows with its $* packages; the first time takes minutes.'
	@.venv/bin/python $(PIP) --editable '.$(if $(filter-out base,$*),[$*])'
	@touch $@

.venv-tf215/stamp-test: setup.py
	@$(call environment,.venv-tf215)
	@echo 'Installing tfdpflows with $(TF215) in .venv-tf215; the first time takes minutes.'
	@.venv-tf215/bin/python $(PIP) --editable '.[test]' '$(TF215)'
	@touch $@

.PHONY: venv
venv: .venv/stamp-base ## Make .venv with the package installed editable

.PHONY: test
test: .venv/stamp-test ## Run the tests
	.venv/bin/python -m pytest $(PYTEST) -m '$(MARK)'

# What needs little time: events, accountants, ledger, schema, flags.
QUICK := tests/accounting/{accounting_docs,composition,event_bounds,event_json,gdp,rounding,statement,zcdp}_test.py \
  tests/accounting/ledger/ledger_{file,merge,release}_test.py \
  tests/accounting/mechanisms/{gaussian_profile,matrix,renyi_curves,votes}_test.py \
  tests/sampling/poisson_test.py tests/tabular/schema_test.py \
  tests/cli/{account,bad_input,numbers}_test.py

.PHONY: check
check: lint .venv/stamp-test ## Run lint and the quick tests, under a minute
	.venv/bin/python -m pytest $(PYTEST) -m 'not full' $(QUICK)

.PHONY: test-full
test-full: .venv/stamp-test ## Run the tests marked full: large grids and fuzzes
	.venv/bin/python -m pytest $(PYTEST) -m full -rP

.PHONY: test-tf215
test-tf215: .venv-tf215/stamp-test ## Run the tests with TensorFlow 2.15.1, in .venv-tf215
	.venv-tf215/bin/python -m pytest $(PYTEST) -m '$(MARK)'

.PHONY: demo
demo: .venv/stamp-demo ## Fit 16,217 real rows, sample and report; leaves all in demo/
	.venv/bin/python -m experiments.demo --output_dir=demo

# Where pip finds a CPU build of that PyTorch it takes it; else one of several
# gigabytes. What cannot be installed is named in the results as skipped.
PEERS := 'torch<=2.13.0 opacus' jax

.PHONY: bench-peers
bench-peers: .venv/stamp-base ## Time a training step beside Opacus and JAX, in .venv-peers
	@$(call environment,.venv-peers)
	@for packages in $(PEERS); do .venv-peers/bin/python $(PIP) $$packages \
	  || echo "$$packages: cannot be installed, skipped." >&2; done
	.venv/bin/python -m experiments.bench_step --parts=peers \
	  --output=experiments/results/bench_step.json

# dpmm needs Python 3.10 or 3.11. CTGAN has an environment of its own, so that
# neither changes the versions of the other's packages.
.PHONY: peers-tabular
peers-tabular: ## Install the synthesizers to compare with, in .venv-peers-*
	@$(call environment,.venv-peers-tabular)
	@.venv-peers-tabular/bin/python $(PIP) 'dpmm==0.1.9' \
	  || echo 'dpmm: cannot be installed, skipped.' >&2
	@$(call environment,.venv-peers-ctgan)
	@.venv-peers-ctgan/bin/python $(PIP) 'torch<=2.13.0' 'ctgan==0.12.1' \
	  || echo 'ctgan: cannot be installed, skipped.' >&2

.PHONY: bench-synthesizers
bench-synthesizers: .venv/stamp-base peers-tabular ## Run MST, PrivBayes and CTGAN on Adult, scored as ours
	.venv/bin/python -m experiments.peers.compare --dataset=adult \
	  --methods=mst --methods=privbayes --output_dir=experiments/results
	.venv/bin/python -m experiments.peers.compare --dataset=adult \
	  --methods=ctgan --epsilon=1e6 --output_dir=experiments/results

.PHONY: lint
lint: .venv/stamp-dev ## Check style and the BUILD files
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m tools.build_files --check
	.venv/bin/python -m tools.api --check

.PHONY: format
format: .venv/stamp-dev ## Put the code in the style that lint checks
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

.PHONY: build-files
build-files: .venv/stamp-base ## Write the BUILD files from the imports
	.venv/bin/python -m tools.build_files

.PHONY: api
api: .venv/stamp-base ## Write docs/api.md, the page of public names
	.venv/bin/python -m tools.api

.PHONY: docs
docs: .venv/stamp-docs ## Build the documentation into site/; broken links are errors
	NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict --quiet
	@echo 'See it by: .venv/bin/python -m http.server --directory=site'

.PHONY: pages
pages: .venv/stamp-test ## Run the pages of docs/, and write what they print
	.venv/bin/python -m tools.doc_pages

.PHONY: clean
clean: ## Remove what the other targets made
	rm -rf .venv .venv-tf215 .venv-peers .venv-peers-tabular demo site *.egg-info build dist .ruff_cache .hypothesis
