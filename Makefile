# Everything a developer runs. Each target works from a fresh clone and is quick when there is nothing to do.
#   make demo    set up this machine and make a video with the tiny random model
#   make test    set up what the tests need (ComfyUI and Chromium included), check, and run all tests
#   make check   lint, types and the fast tests
PYTHON ?= python3
PY := .venv/bin/python
MYPY := ../.venv/bin/mypy --config-file ../pyproject.toml
TIMED := scripts/timed.sh
# Starting ranks, ComfyUI and Chromium is waiting on one core for the most part. A file's tests stay together, in order.
TOGETHER := -n 2 --dist loadfile --no-loadscope-reorder
# Independent targets, such as the checks and the setting up of ComfyUI, run two at a time.
MAKEFLAGS += --jobs=2

.PHONY: help setup setup-check setup-tests setup-comfyui demo check lint types web fast test all-tests bench clean

help:
	@sed -n 's/^#   //p' Makefile

setup: ## the engine's own environment, .venv
	@$(TIMED) setup $(PYTHON) install.py

setup-check: setup ## the tools that the checks need
	@$(TIMED) setup-check scripts/setup_tests.sh check

setup-tests: setup-check setup-comfyui ## what the tests need besides: the reference pipeline's torchvision
	@$(TIMED) setup-tests scripts/setup_tests.sh all

setup-comfyui: ## ComfyUI in an environment of its own, and Chromium
	@$(TIMED) setup-comfyui scripts/setup_comfyui.sh

demo: setup
	@$(PY) -m engine demo

check: lint types web fast

lint: setup-check
	@$(TIMED) ruff-check .venv/bin/ruff check .
	@$(TIMED) ruff-format .venv/bin/ruff format --check .

# Both packages are checked as parts of one, the way ComfyUI imports them: .build/h3pack is the repository's root.
types: setup-check
	@mkdir -p .build && ln -sfn .. .build/h3pack
	@cd .build && ../$(TIMED) mypy $(MYPY) -p h3pack.engine -p h3pack.comfy_h3

web: setup-check
	@$(TIMED) tsc node_modules/.bin/tsc --noEmit -p tsconfig.json
	@$(TIMED) web-tests node --test tests/web/*.test.mjs

fast: setup-check
	@$(TIMED) fast-tests $(PY) -m pytest -q tests/unit tests/architecture

test: all-tests

# The checks have run the tests of tests/unit and tests/architecture.
all-tests: check setup-tests
	@$(TIMED) all-tests $(PY) -m pytest $(TOGETHER) --durations=25 tests --ignore=tests/unit --ignore=tests/architecture

bench: setup
	@$(PY) benchmarks/step_ratio.py

clean:
	rm -rf .venv .cache .build .mypy_cache .ruff_cache .pytest_cache node_modules *.egg-info artifacts demo demo.mp4
