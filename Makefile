# SPDX-License-Identifier: Apache-2.0

PYTHON ?= python3
ARGS ?=
# tests mostly wait for real servers, so more than there are cores
WORKERS ?= 3

BIN := .venv/bin
# hatchling and editables are pinned and installed first: building needs no isolation
PIP := $(BIN)/python -m pip --disable-pip-version-check install -qq -c constraints.txt
# some machines set PYTHONDONTWRITEBYTECODE: then this is the only chance
COMPILE := env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m compileall -q -j 0

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help install run test-deps lint check test lab lab-down lab-status bench soak audit pictures pins clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1|/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf 'make %-10s %s\n' "$$name" "$$text"; done

install: .venv/.installed ## create .venv with Holdfast in it (PYTHON=python3.x to choose)
	@:

.venv/.installed: pyproject.toml constraints.txt
	@command -v '$(PYTHON)' >/dev/null || { \
		echo "$(PYTHON) is not here: install Python 3.11 or later, or say make PYTHON=..." >&2; exit 1; }
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(PYTHON) is $$('$(PYTHON)' -V), Holdfast needs 3.11 or later: make PYTHON=..." >&2; exit 1; }
	@'$(PYTHON)' -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "$(PYTHON) lacks venv: apt-get install python3-venv (or your system's equal)" >&2; exit 1; }
	@echo 'installing, about a minute'
	@$(BIN)/python -c '' 2>/dev/null || '$(PYTHON)' -m venv --clear .venv
	@$(PIP) hatchling editables
	@$(PIP) --no-build-isolation -e '.[rabbit,postgresql,mysql]'
	@$(COMPILE) .venv/lib src || echo 'some files could not be compiled ahead: no harm' >&2
	@touch $@

run: install ## run everything in one process, with its data in state/ (ARGS='...' for options)
	@exec $(BIN)/holdfast up --state state $(ARGS)

test-deps: .venv/.installed-test ## install what the tests need, servers from Debian included
	@tools/debian-parts
	@tools/linux-guest
	@[ .venv/.installed-bmc -nt .venv/.installed-test ] || { $(PIP) -e '.[bmc]' && touch .venv/.installed-bmc; } || { \
		echo 'tests of fencing by BMCs will be skipped: sushy-tools and virtualbmc cannot be installed' >&2; \
		[ "$$CI" != true ]; }

.venv/.installed-test: .venv/.installed
	@echo 'installing what the tests need, about a minute'
	@$(PIP) --no-build-isolation -e '.[test]'
	@$(COMPILE) .venv/lib || echo 'some files could not be compiled ahead: no harm' >&2
	@touch $@

lint: .venv/.installed-test ## ruff, mypy, plain words and the import rules
	@$(BIN)/ruff check -q
	@$(BIN)/ruff format -q --check
	@$(BIN)/mypy --no-error-summary
	@$(BIN)/python tools/plain-words
	@$(BIN)/lint-imports --no-logo >.venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log; exit 1; }

# pages, programs and drivers are left to `make test`
CHECKED := agent alarms api client db docs hostmonitor hoststatus jobs leases metrics model nova rabbit recovery runtime

check: lint ## for whoever writes code: lint, types, import rules, tests without servers; 3 minutes
	@$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal --no-servers \
		-m 'not lab and not slow' $(CHECKED:%=tests/%) $(ARGS)

test: install test-deps lint ## everything CI checks, in half an hour
	@WORKERS=$(WORKERS) tools/test $(ARGS)

lab: test-deps ## bring up a real OpenStack in .lab and leave it running (docs/contribute/lab.md)
	@$(BIN)/python -m lab up

lab-down: | .venv/.installed-test ## stop the lab; what it made stays
	@$(BIN)/python -m lab down

lab-status: | .venv/.installed-test ## say what of the lab runs
	@$(BIN)/python -m lab status || :

bench: test-deps ## print the figures, one script of bench/ after the other
	@for script in bench/[!_]*.py; do \
		[ -e "$$script" ] || { echo 'nothing in bench/ yet'; break; }; \
		echo "== $$script"; PYTHONPATH=. $(BIN)/python "$$script" || exit 1; done

soak: test-deps ## the proofs without a limit (ATTEMPTS=... SECONDS=... STEPS=... SEED=... PARTS='races model')
	@tools/soak $(PARTS)

audit: .venv/.installed-test ## bandit, the installed packages against constraints.txt and hashes.txt, an SBOM in build/sbom.json
	@$(BIN)/python tools/audit

pictures: test-deps ## make the pictures of the console in docs/pictures anew
	@$(BIN)/python tools/pictures

pins: ## renew constraints.txt and hashes.txt: newest versions that pyproject.toml allows
	@echo 'resolving, a minute or two'
	@tools/pins '$(PYTHON)'

clean: ## remove .venv and caches; state/ stays
	@rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	@find src tests bench tools lab -name __pycache__ -type d -prune -exec rm -rf {} +
