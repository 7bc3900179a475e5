# Two commands start the project: `make demo` and `make test`. Each keeps to a virtual environment of its own.
.DEFAULT_GOAL := help
.PHONY: help demo test slow lint build bench docs site mutants clean

VENV := .venv
# Beside these, which need a server or install other tools: bench.real_vllm URL, bench.engine_vs_vllm URL,
# bench.scheduler.compare, bench.peers.run.
BENCHES := startup summary sse_rate engine_rate engine_pace campaign soak exporter trust hot_path open_loop hold freeze
PYTHON := $(VENV)/bin/python
# Small enough for about a minute, large enough for every concurrency to reach its steady state.
DEMO := --engine mi50-rx6900xt --speed 16 -c 1,2,4,8,16 --requests 64 --output-tokens 20:28
WHEEL_CHECK := build/wheel-check

help: ## what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' Makefile

demo: ## a sweep of three simulated models, no server needed
	@scripts/venv.sh $(VENV) ""
	@$(VENV)/bin/cadenza sweep $(DEMO)

test: ## the unit tests, on each Python that is installed: no socket, no waiting
	@scripts/test.sh

slow: ## the tests that open sockets, start processes and wait (with Prometheus: scripts/get_prometheus.sh build/prometheus)
	@PATH="$(CURDIR)/build/prometheus/usr/bin:$$PATH" scripts/test.sh slow

lint: ## ruff and mypy --strict
	@scripts/venv.sh $(VENV) "[dev]"
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy

build: ## the wheel, installed and run once in an environment of its own
	@scripts/venv.sh $(VENV) "[dev]"
	@rm -rf dist $(WHEEL_CHECK) && mkdir -p build
	@$(PYTHON) -m build --wheel --outdir dist . >build/wheel.log 2>&1 || { tail build/wheel.log; exit 1; }
	@$(PYTHON) -m venv $(WHEEL_CHECK)
	@$(WHEEL_CHECK)/bin/python -m pip install --disable-pip-version-check -q dist/*.whl
	@cd $(WHEEL_CHECK) && bin/cadenza --version && bin/cadenza --help >/dev/null && bin/cadenza engine --help >/dev/null
	@cd $(WHEEL_CHECK) && bin/python -c "from cadenza.engine import profile; assert [profile.load(n) for n in profile.names()]"
	@ls -l dist

bench: ## the tool's own floor, and how far its figures are from the truth (a quarter of an hour, two cores, a C compiler)
	@scripts/venv.sh $(VENV) "[dev]"
	@scripts/venv.sh $(VENV) "[dev,bench]"
	@for script in $(BENCHES); do echo "== python -m bench.$$script"; $(PYTHON) -m bench.$$script || exit 1; done

docs: ## the generated pages, and the site in build/site; a broken link is an error
	@scripts/venv.sh $(VENV) "[dev]"
	$(PYTHON) scripts/generate_definitions.py
	$(PYTHON) scripts/generate_findings.py
	$(PYTHON) scripts/generate_cli.py
	$(PYTHON) scripts/generate_python.py
	$(PYTHON) scripts/generate_observe.py
	@$(MAKE) --no-print-directory site

site:
	@scripts/venv.sh build/venv-docs "[docs]"
	build/venv-docs/bin/python -m sphinx -q -W --keep-going docs build/site

# Which mutants: a pattern of mutmut's, as 'cadenza.wire.sse.*'. Results are kept in mutants/, and a run goes on there.
ONLY :=
mutants: ## break the code in small ways and list what no test notices (hours; ONLY='cadenza.wire.*' for a part)
	@scripts/venv.sh build/venv-mutants "[dev,mutants]"
	nice -n 15 build/venv-mutants/bin/mutmut run --max-children 1 $(if $(ONLY),'$(ONLY)')
	build/venv-mutants/bin/mutmut results

clean: ## remove everything that make made, but not your runs
	rm -rf .venv .venv-* build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis
