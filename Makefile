# Petzval from a fresh clone: `make demo` shows it, `make test` checks it. Needs python3 (3.11 or newer) with venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet -c constraints.txt
PYTEST_WORKERS ?= 2
PYTEST_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean

help:
	@echo "make demo     install into $(VENV), then generate a picture and a clip from words"
	@echo "make test     lint, types, import rules and all tests, as CI runs them"
	@echo "make lint     lint, types and import rules alone"
	@echo "make format   rewrite the code in the project's format"
	@echo "make clean    remove $(VENV), caches and the demo's output"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "Petzval needs Python 3.11 or newer, and %s is %d.%d; name another one: make PYTHON=python3.12 ..." % (sys.executable, v[0], v[1]))'
	@echo "Making a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "On Debian and Ubuntu the missing part is: apt-get install python3-venv"; exit 1; }

# A stamp newer than what names the packages means that nothing has to be installed again.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Petzval and what it needs (minutes, the first time)"
	@$(PIP_INSTALL) -e .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing Petzval with its tools for development (minutes, the first time)"
	@$(PIP_INSTALL) -e '.[dev]'
	@touch $(VENV)/installed $@

demo: $(VENV)/installed
	@mkdir -p demo
	@$(BIN)/petzval generate "a large fox on the left, a beach" --seed 7 --out demo/fox.png
	@$(BIN)/petzval generate "a small rocket flies up, the night sky" --seed 7 --task text-to-video --out demo/rocket.mp4
	@echo
	@echo "A picture: demo/fox.png"
	@echo "A clip:    demo/rocket.mp4"
	@echo
	@echo "Next, for example:"
	@echo "  $(BIN)/petzval generate \"the fox, in snow\" --image demo/fox.png --strength 0.6 --out demo/fox2.png"
	@echo "  $(BIN)/petzval models"
	@echo "  $(BIN)/petzval --help"

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

# One thread a worker: with more, the workers fight over the cores, and sums are added up in another order.
test: lint
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 HF_HUB_OFFLINE=1 $(BIN)/pytest -n $(PYTEST_WORKERS) --dist loadfile $(PYTEST_ARGS)

format: $(VENV)/installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist demo .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
