# Everything happens in .venv, made on first use. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
VENV := .venv
PINS := constraints.txt
PY := $(VENV)/bin/python
# What is compiled when the package is installed, where there is a C compiler.
LOOPS := $(wildcard setup.py src/randeigen/backend/native/*.[ch])
# Processes that share the tests.
JOBS ?= 2

# Data sets beside the checkout, where there are any; elsewhere they are downloaded to the user's cache.
ifneq ($(wildcard ../shared/data),)
export RANDEIGEN_DATA ?= $(abspath ../shared/data)
endif

.PHONY: help demo test test-flower test-trainers fuzz lint format types check docs package clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    see it work: a federation under attack, in a table and one page"
	@echo "make test    run the tests (JOBS=2)   make lint    ruff: rules and format"
	@echo "make check   lint, types and tests    make types   mypy"
	@echo "make format  ruff formats the code    make docs    the documentation site, into site/"
	@echo "make package sdist and wheel, checked, into dist/"
	@echo "make test-flower  the tests of randeigen.flower and randeigen.nvflare, in .venv-flower"
	@echo "make test-trainers  those of randeigen.torch.lightning and .huggingface, in .venv-trainers"
	@echo "make fuzz    hostile inputs, many (ARGS='--inputs 1000000 --out record.json')"
	@echo "make clean   remove caches and outputs (.venv stays)"

demo: $(VENV)/.installed-demo
	$(PY) -m examples.demo $(ARGS)

test: $(VENV)/.installed-test
	$(PY) -m pytest -n $(JOBS) --dist worksteal $(ARGS)

# In an environment of its own: flwr bounds packages from above that the others take newer.
test-flower:
	@$(MAKE) --no-print-directory VENV=.venv-flower PINS=constraints-flower.txt .venv-flower/.installed-test-flower
	.venv-flower/bin/python -m pytest -m "(flower or nvflare) and not slow" tests/flower tests/nvflare $(ARGS)

# In one of its own: a torchvision beside them, which byzfl brings, must be built for the very torch.
test-trainers:
	@$(MAKE) --no-print-directory VENV=.venv-trainers .venv-trainers/.installed-test-trainers
	.venv-trainers/bin/python -m pytest tests/torch/test_lightning.py tests/torch/test_huggingface.py $(ARGS)

fuzz: $(VENV)/.installed-test
	$(PY) -m fuzz $(ARGS)

lint: $(VENV)/.installed-lint
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.installed-lint
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

types: $(VENV)/.installed-lint
	$(PY) -m mypy

# One after the other, whatever -j says, so that the last words are the tests' own.
check:
	@$(MAKE) --no-print-directory lint
	@$(MAKE) --no-print-directory types
	@$(MAKE) --no-print-directory test

docs: $(VENV)/.installed-docs
	$(PY) -m mkdocs build --strict

# Of what is committed, and without what was compiled here: the wheel is for every machine.
package: $(VENV)/.installed-release
	rm -rf dist build/committed && mkdir -p build/committed
	git archive HEAD | tar -x -C build/committed
	RANDEIGEN_NATIVE=0 $(PY) -m build --outdir dist build/committed
	$(PY) -m twine check --strict dist/*

clean:
	rm -rf build dist site demo-output .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find . -name .venv -prune -o -name .git -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# The pins are for Python 3.11 and newer; older ones take what pip resolves.
$(VENV)/.installed-%: pyproject.toml $(PINS) $(LOOPS) | $(VENV)/bin/pip
	@echo "installing what 'make $*' needs into $(VENV) (minutes the first time, nothing after that)"
	@$(PY) -c 'import pip, sys; sys.exit(int(pip.__version__.split(".")[0]) < 22)' \
		|| $(PY) -m pip install -q --upgrade pip
	@pins=$$($(PY) -c 'import sys; print("-c $(PINS)" if sys.version_info >= (3, 11) else "")') \
		&& $(PY) -m pip install -q --disable-pip-version-check $$pins -e '.[$*]'
	@touch $@

# pip is what venv makes last: where it is there, the environment is whole.
$(VENV)/bin/pip:
	@command -v $(PYTHON) >/dev/null \
		|| { echo "There is no '$(PYTHON)' here. Name a Python 3.10 or newer: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "randeigen needs Python 3.10 or newer, '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
		"Name a newer one: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
		|| { echo "'$(PYTHON)' cannot make virtual environments: its venv module is missing." \
		"On Debian and Ubuntu: sudo apt install python3-venv" >&2; exit 1; }
	@echo "making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
