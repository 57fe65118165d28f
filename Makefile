# Each target sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
WEB := scripts/web/node_modules/.package-lock.json

# The versions that are the lower bounds in pyproject.toml.
OLDEST := .venv-oldest
# A process that has no tests left takes over some of another: those of processes are long, and stand together.
PARALLEL := -n auto --dist worksteal
# The tests of what another version is likely to break; of the kernels, which take long to compile, those for float32.
SMOKE := $(patsubst %,tests/test_%.py,examples runtime schemas sessions) --deselect tests/test_examples.py::test_every_dtype

.PHONY: demo test lint types unit fuzz test-full test-oldest smoke-oldest test-web web web-packages bench bench-training beside-torch models accuracy docs clean

demo: $(VENV)/ready
	$(RUN) -m scripts.demo

test: lint types unit

lint: $(VENV)/ready
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/ready
	$(RUN) -m mypy

unit: $(VENV)/ready
	$(RUN) -m pytest -q $(PARALLEL)

# All combinations of dtypes and attributes, where `make test` has every two of them together.
test-full: $(VENV)/ready
	$(RUN) -m pytest -q $(PARALLEL) --full

test-oldest: $(OLDEST)/ready
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL)

smoke-oldest: $(OLDEST)/ready
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL) $(SMOKE)

# Random calls and graphs on all engines: make fuzz SECONDS=600 SEED=7
fuzz: $(VENV)/ready
	$(RUN) -m pytest -q tests/test_fuzz.py --fuzz-seconds $(or $(SECONDS),180) --fuzz-seed $(or $(SEED),0)

# onnxruntime-web: the function bodies under Node, the page in Chromium.
test-web: $(VENV)/ready $(WEB)
	$(RUN) -m pytest -q tests/web

web: $(VENV)/ready $(WEB)
	$(RUN) -m scripts.web $(if $(PORT),--port $(PORT))

bench: $(VENV)/ready
	$(RUN) -m scripts.bench

# Whole steps of training beside PyTorch's, which has to be in the environment: pip install 'onnx-ops[torch]'
bench-training: $(VENV)/ready
	$(RUN) -m scripts.bench_training

# The trainings beside the same in PyTorch, which has to be there too.
beside-torch: $(VENV)/ready
	$(RUN) -m scripts.trainings.beside_torch

# The captured steps of the trainings; it needs PyTorch as well.
models: $(VENV)/ready
	$(RUN) -m models.capturing

accuracy: $(VENV)/ready
	$(RUN) -m scripts.accuracy

# docs/capture.md is written where PyTorch is in the environment: pip install 'onnx-ops[torch]'
docs: $(VENV)/ready
	$(RUN) -m scripts.docs
	@if $(RUN) -c 'import onnxscript, torch' 2>/dev/null; then $(RUN) -m scripts.capture_docs; \
	  else echo "docs/capture.md is left as it is: it needs PyTorch and onnxscript"; fi

$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "onnx_ops needs Python 3.11 or newer; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --upgrade pip
	$(RUN) -m pip install --quiet --editable '.[demo,test]'
	touch $@

$(OLDEST)/ready: pyproject.toml scripts/oldest.py
	$(PYTHON) -m venv $(OLDEST)
	$(PYTHON) -m scripts.oldest > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --upgrade pip
	$(OLDEST)/bin/python -m pip install --quiet --only-binary :all: --constraint $(OLDEST)/constraints.txt --editable '.[demo,test]'
	touch $@

web-packages: $(WEB)

$(WEB): scripts/web/package.json scripts/web/package-lock.json
	cd scripts/web && npm ci
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) scripts/web/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
