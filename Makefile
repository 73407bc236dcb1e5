# make demo | test | test-browser | test-xla | test-oldest | test-newest | test-release | check | docs | bench | clean.
# Needs Python 3.11 or newer, pip and make; everything else goes into virtual environments of this checkout.
#   PYTHON=python3.12     the interpreter to make the environment with
#   JOBS=0                tests one after the other, in one process
#   CONSTRAINTS=          install the newest versions instead of the tested ones
#   XLA=2.8               test-xla with the torch_xla of Kaggle's images instead of Colab's

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
# Most tests wait for processes of theirs, so that more run side by side than there are cores.
JOBS ?= 3
# Each torch_xla (2.9 or 2.8) works with one release of torch only, so it has an environment of its own.
XLA ?= 2.9
VENV_XLA ?= $(VENV)-xla$(XLA:2.9=)

# What depends most on other people's releases; VERSION_TESTS="--ignore=tests/browser --ignore=tests/xla tests" is all.
VERSION_TESTS ?= \
	tests/cli/test_flags.py tests/cli/test_launch.py tests/export tests/launch/test_frames.py \
	tests/launch/test_kernel_*.py tests/launch/test_output_kernel.py tests/launch/test_output_router.py \
	tests/launch/test_payload_*.py tests/magics tests/runtime/data tests/runtime/test_precision.py \
	tests/test_accelerator.py tests/test_import.py

BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))

.PHONY: demo test test-browser test-xla test-release check format docs bench clean test-oldest test-newest

demo: $(VENV)/.installed-demo  ## train a small network from a notebook, in a real kernel
	$(BIN)/python notebooks/run.py notebooks/quickstart.ipynb

test: check  ## what check does, then all tests but those in a browser
	$(BIN)/python -m pytest --ignore=tests/browser -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

test-browser: $(VENV)/.installed-browser  ## what is seen in JupyterLab; needs Chromium (.ci/install-chromium)
	$(BIN)/python -m pytest tests/browser $(PYTEST_ARGS)

test-xla: $(VENV_XLA)/.installed  ## what runs on TPUs, with the real torch_xla on its CPU client; needs gcc
	$(VENV_XLA)/bin/python -m pytest tests/xla $(PYTEST_ARGS)

test-oldest test-newest: test-%: $(VENV)-%/.installed  ## with the lowest versions of everything, or the newest
	$(VENV)-$*/bin/python -m pytest $(VERSION_TESTS) -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

test-release: $(VENV)/.installed-release  ## build wheel and sdist, install them in an environment of their own
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) tests/release/check.py dist

check: $(VENV)/.installed-dev  ## format, lint, types and the direction of imports only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: $(VENV)/.installed-dev  ## rewrite what can be put right without a person
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.installed-docs  ## build the documentation site into build/site; a link that leads nowhere is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open build/site/index.html, or serve it: $(BIN)/mkdocs serve"

bench: $(VENV)/.installed-bench  ## launch times, side by side with the incumbent
	$(BIN)/python -m benchmarks $(BENCH_ARGS)

clean:  ## remove the environment, executed notebooks and caches
	rm -rf $(VENV) $(VENV)-xla $(VENV)-xla2.8 $(VENV)-oldest $(VENV)-newest build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find nbaccel tests benchmarks notebooks -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing nbaccel with its '$*' extra into $(VENV) (a few minutes when torch isn't cached)"
	$(PIP_INSTALL) --editable '.[$*]'
	@touch $@

$(VENV_XLA)/.installed: tests/xla/install.sh tests/xla/cuda_stubs.py $(CONSTRAINTS)
	@echo "installing torch_xla $(XLA) into $(VENV_XLA) (a minute or two)"
	rm -rf $(VENV_XLA)
	PYTHON=$(PYTHON) tests/xla/install.sh $(VENV_XLA) $(XLA) $(CONSTRAINTS)
	@touch $@

$(VENV)-oldest/.installed $(VENV)-newest/.installed: $(VENV)-%/.installed: tests/versions/install.sh pyproject.toml
	@echo "installing the $* versions into $(VENV)-$* (three minutes)"
	rm -rf $(VENV)-$*
	PYTHON=$(PYTHON) tests/versions/install.sh $(VENV)-$* $*
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit( \
		f"nbaccel needs Python 3.11 or newer, {sys.executable} is {v[0]}.{v[1]}; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
