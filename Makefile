# Everything a person types. `make` alone explains the targets.
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
IMAGE_PROGRAMS = $(if $(SLIM),,$(shell $(BIN)/python -c 'import tomllib; print(*(f"\"{one}\"" for one in tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["image"]))'))
WHEELS_PYTHON ?= $(shell $(BIN)/python -c 'import sys; print("%d.%d" % sys.version_info[:2])')
SOURCES := pyproject.toml hatch_build.py $(wildcard protos/whippletree/v1/*.proto)
# Only as `make demo MODEL=openai/NAME`: a variable of the environment may be anybody's.
CHOSEN := $(if $(filter command%,$(origin MODEL)),$(MODEL))
MODEL_FLAG := $(if $(CHOSEN),--model '$(CHOSEN)')
PROVIDERS := $(if $(CHOSEN),$(VENV)/.providers)
CODE := protocol cli gateway services bench deploy examples tests tools pytest-whippletree hatch_build.py

.DEFAULT_GOAL := help
.PHONY: help venv npm demo demo-kill up test unit system faults long lint bench pages protos wheels clean

help: ## Explain the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(VENV)/.run ## Install what running needs into .venv

demo: $(VENV)/.run $(PROVIDERS) ## Run one agent turn through all five processes (MODEL=openai/NAME: on a real model)
	@$(BIN)/whippletree demo $(MODEL_FLAG)

demo-kill: $(VENV)/.run ## Kill processes around tool calls and count how often the tools ran
	@$(BIN)/whippletree demo --kill

up: $(VENV)/.run $(PROVIDERS) ## Start the five processes on this machine and keep them running (Ctrl-C stops them)
	@$(BIN)/whippletree up $(MODEL_FLAG)

test: $(VENV)/.test ## Set up and run every test
	@$(BIN)/python -m tests.stages

unit: $(VENV)/.test ## Run the unit tests and the vectors only
	@$(BIN)/python -m tests.stages unit

system: $(VENV)/.test ## Run the tests that start the real processes
	@$(BIN)/python -m tests.stages system

faults: $(VENV)/.test ## Run the tests that kill processes
	@$(BIN)/python -m tests.stages faults

long: $(VENV)/.test ## Run what takes minutes at full length (on a quiet machine; not part of make test)
	@$(BIN)/python -m tests.stages long

lint: $(VENV)/.lint ## Check style, types and import rules
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: $(VENV)/.test ## Run all benchmarks and print them as a table
	@$(BIN)/python -m bench

pages: $(VENV)/.test ## Write the pages and pictures that come from the code
	@$(BIN)/python -m tools.grpc_reference
	@$(BIN)/python -m tools.pictures

protos: $(VENV)/.lint ## Generate the gRPC stubs again after a change under protos/
	@$(BIN)/python hatch_build.py

wheels: $(VENV)/.run ## Fill dist/wheels for an image that is built without a network (WHEELS_PYTHON=3.13: for another Python; SLIM=1: without Node and uv)
	@rm -rf dist/wheels
	@$(PIP) wheel --no-deps --wheel-dir dist/wheels .
	@set -- dist/wheels/whippletree-*.whl; \
	  $(PIP) download --only-binary=:all: --python-version $(WHEELS_PYTHON) --dest dist/wheels "$$1[providers]" $(IMAGE_PROGRAMS)

npm: $(VENV)/.npm ## Install the MCP programs of npm that some tests use (needs npm; without them those tests are skipped)

clean: ## Remove the virtual environment and everything generated
	rm -rf $(VENV) build dist protos/whippletree/v1/*_pb2*.py protos/whippletree/v1/*_pb2*.pyi

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Whippletree needs Python 3.11 or newer as '$(PYTHON)' (on Debian: apt install python3; or name another one: make PYTHON=python3.12)." >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "Python's venv module is missing. Install it (on Debian: apt install python3-venv) and run make again." >&2; exit 1; }
	@echo "Setting up $(VENV) (once)..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.run: $(SOURCES) | $(BIN)/uv
	@echo "Installing Whippletree and what it needs..."
	@$(UV) --editable .
	@touch $@

$(VENV)/.providers: $(VENV)/.run
	@echo "Installing the packages of the model providers..."
	@$(UV) --editable '.[providers]'
	@touch $@

$(VENV)/.test: $(VENV)/.run
	@$(UV) --group test
	@touch $@

$(VENV)/.npm: tests/npm/package.json tests/npm/package-lock.json | $(BIN)/uv
	@echo "Installing MCP programs of npm..."
	@mkdir -p $(VENV)/npm
	@cp tests/npm/package.json tests/npm/package-lock.json $(VENV)/npm/
	@npm ci --prefix $(VENV)/npm --silent --no-audit --no-fund --ignore-scripts
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	@$(UV) --group lint
	@touch $@
