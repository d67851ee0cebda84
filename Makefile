# Everything that a developer needs. `make help` lists it; `make run` and `make test` work on a fresh clone.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
RUN_STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
export PIP_ROOT_USER_ACTION := ignore

PAIRS := embedded real
SCALE ?= 0.1
PYTEST_ARGS ?=

.PHONY: help run test lint format bench chaos docs clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | awk -F '\t' '{ printf "make %-8s %s\n", $$1, $$2 }'

# A SECRET_KEY of this checkout's own, and from it the audit key unless OUTBOX_AUDIT_KEY is set. exec: signals reach the demo.
run: $(RUN_STAMP) ## dashboard, workers and a demo shop on http://127.0.0.1:$PORT/ (SQLite; or DATABASE_URL, AMQP_URL)
	@if [ -z "$$SECRET_KEY" ]; then \
		[ -s .secret_key ] || (umask 077 && $(PY) -c 'import secrets; print(secrets.token_urlsafe(50))' > .secret_key); \
		SECRET_KEY=$$(cat .secret_key); \
	fi; \
	export SECRET_KEY OUTBOX_AUDIT_KEY="$${OUTBOX_AUDIT_KEY:-$$SECRET_KEY}"; \
	exec $(PY) manage.py demo

# Both pairs side by side, or the one that PAIR names. Their output is kept apart and shown whole.
test: $(DEV_STAMP) ## all tests, on SQLite + loopback and on PostgreSQL + RabbitMQ (PAIR=embedded|real: one of them)
	@SCALE=$(SCALE) $(PY) -m tests.pairs $(PYTEST_ARGS)

lint: export SECRET_KEY := lint
lint: export DEBUG := 1
lint: export DATABASE_URL := sqlite://:memory:
lint: $(DEV_STAMP) ## style, types, direction of imports, missing migrations
	@failed=""; for check in "ruff check --output-format concise ." "ruff format --check ." "mypy" "lint-imports" \
		"python manage.py makemigrations --check --dry-run"; do \
		echo "--- $$check"; $(VENV)/bin/$$check || failed="$$failed; $$check"; \
	done; \
	[ -z "$$failed" ] || { echo "Failed: $${failed#; }" >&2; exit 1; }

format: $(DEV_STAMP) ## let ruff format and mend what it can
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(DEV_STAMP) ## measure: ratios against pika alone, a simple outbox, and small against big queues
	@PAIR=$${PAIR:-real} $(PY) -m pytest tests/benchmarks -s -o norecursedirs=".* build dist" $(PYTEST_ARGS)

chaos: ## kills, restarts and stalls, at full size
	@$(MAKE) --no-print-directory test SCALE=1 PYTEST_ARGS="tests/chaos $(PYTEST_ARGS)"

docs: $(DEV_STAMP) ## write docs/settings.md and the pictures of the README anew
	$(PY) docs/settings_page.py
	PAIR=embedded SCREENSHOTS=1 $(PY) -m pytest -q tests/browser/test_main_job.py -k pictures

clean: ## remove the virtual environment, caches and the demo's database
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info test-results staticfiles
	rm -f outboard.sqlite3 outboard.sqlite3-shm outboard.sqlite3-wal
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(RUN_STAMP): requirements.txt | $(PY)
	@echo "Installing what requirements.txt names into $(VENV) ..."
	@$(PIP) install -r requirements.txt
	@touch $@

$(DEV_STAMP): requirements-dev.txt requirements.txt | $(PY)
	@echo "Installing what requirements-dev.txt names into $(VENV) ..."
	@$(PIP) install -r requirements-dev.txt
	@touch $@ $(RUN_STAMP)

$(PY):
	@for candidate in $${PYTHON:-python3 python3.13 python3.12 python3.11}; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$candidate; break; fi; \
	done; \
	if [ -z "$$found" ]; then \
		echo "Outboard needs Python 3.11 or later, and found none; set PYTHON to one." >&2; exit 1; \
	fi; \
	$$found -m venv $(VENV) || { rm -rf $(VENV); \
		echo "$$found could not make a virtual environment (on Debian: apt-get install python3-venv)." >&2; exit 1; }
