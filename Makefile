# make demo | test | check | bench | clean. Needs Python 3.11 or newer, pip and make; everything else goes
# into a virtual environment of this checkout.
#   PYTHON=python3.12     the interpreter to make the environment with
#   CONSTRAINTS=          install the newest versions instead of the tested ones

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

.PHONY: demo test check format bench clean

demo: $(VENV)/.installed-demo  ## train a small network from a notebook, in a real kernel
	$(BIN)/python notebooks/run.py notebooks/quickstart.ipynb

test: check  ## format, lint, types, then all tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

check: $(VENV)/.installed-dev  ## format, lint and types only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev  ## rewrite what can be put right without a person
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-bench  ## launch times, side by side with the incumbent
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:  ## remove the environment, executed notebooks and caches
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find nbaccel tests benchmarks notebooks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing nbaccel with its '$*' extra into $(VENV) (a few minutes when torch isn't cached)"
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
		f"nbaccel needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
