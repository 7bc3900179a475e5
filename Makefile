# Two commands start the project: `make demo` and `make test`. Each keeps to a virtual environment of its own.
.DEFAULT_GOAL := help
.PHONY: help demo test lint build bench docs clean

VENV := .venv
# Small enough for about a minute, large enough for every concurrency to reach its steady state.
DEMO := --engine mi50-rx6900xt --speed 10 -c 1,2,4,8,16 --requests 64 --output-tokens 24:40

help: ## what there is to make
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile | expand -t 16

demo: ## a sweep of three simulated models, no server needed
	@scripts/venv.sh $(VENV) ""
	@$(VENV)/bin/cadenza sweep $(DEMO)

test: ## everything that needs no special hardware, on each Python that is installed
	@scripts/test.sh

lint: ## ruff and mypy --strict
	@scripts/venv.sh $(VENV) "[dev]"
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

build: ## the wheel, installed and run once in an environment of its own
	@scripts/venv.sh $(VENV) "[dev]"
	rm -rf dist build/wheel-check
	$(VENV)/bin/python -m build --wheel --outdir dist . >/dev/null
	$(VENV)/bin/python -m venv build/wheel-check
	build/wheel-check/bin/pip install --disable-pip-version-check -q dist/*.whl
	cd build/wheel-check && bin/cadenza --version && bin/cadenza engine --help >/dev/null
	@ls -l dist

bench: ## the tool's own floor: start-up, parser, embedded engine
	@scripts/venv.sh $(VENV) "[dev]"
	@for script in bench/*.py; do echo "== $$script"; $(VENV)/bin/python $$script || exit 1; done

docs: ## the generated pages
	@scripts/venv.sh $(VENV) "[dev]"
	$(VENV)/bin/python scripts/generate_definitions.py
	$(VENV)/bin/python scripts/generate_cli.py

clean: ## everything that make made, but not your runs
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
