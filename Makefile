# Each target sets up what it needs: `make demo` and `make test` work on a fresh machine with Python 3.11+ and make.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
WEB := scripts/web/node_modules/.package-lock.json

# The versions that are the lower bounds in pyproject.toml.
OLDEST := .venv-oldest
# The newest of everything, PyTorch included, which is a download of some gigabytes.
NEWEST := .venv-newest
# The models of other packages, which see the packages of .venv, so that PyTorch is there once.
ZOO := .venv-zoo
# The documentation as a site, with a package from npm that draws its flowcharts.
SITE := .venv-site
FLOWCHARTS := scripts/site/node_modules/.package-lock.json
# What builds and examines a release.
RELEASE := .venv-release
# With RECORD=1 a run without a failure is noted in docs/versions.json, for the table in docs/support.md.
RECORDED = $(if $(RECORD),--record "make $@")
# Where modules are compiled anew in each process, those that tests start take twice as long.
unexport PYTHONDONTWRITEBYTECODE
# A process that has no tests left takes over some of another: those of processes are long, and stand together.
PARALLEL := -n auto --dist worksteal
# Without the tests of captures that add few branches for their time, which make select finds and make test-full runs.
SELECTED := @tests/capture/covered.txt
# The tests of what another version is likely to break.
SMOKE := tests/cli $(patsubst %,tests/%.py,linking/test_schemas results/test_examples runtime/test_runtime runtime/test_sessions) --deselect tests/results/test_examples.py::test_every_dtype
# Of them those of the library, which has all kernels, and those of single kernels, which take up to a minute each to
# compile; what kernels are made of has tests of its own.
LIBRARY := -library]
KERNELS := test_example and -kernel] or CtcLossBackward and -kernels]
WITHOUT_KERNELS := $(patsubst %,--deselect tests/%,cli/test_comparing.py::test_run_and_compare \
  $(patsubst %,cli/test_doctor.py::%,test_all_ops_run test_doctor_finds_what_does_not_work) \
  cli/test_train_command.py::test_order_of_the_samples_and_several_batches_in_a_step \
  runtime/test_sessions.py::test_outputs_that_a_node_omits_are_not_computed)

.PHONY: demo help test lint types unit test-captures select fuzz test-full test-oldest test-newest smoke-oldest test-web web web-packages native-package bench bench-training bench-memory beside-torch zoo zoo-speed models accuracy docs site wheel release-check clean

demo: $(VENV)/ready ## five short trainings on real data, and a page of their pictures (the default target)
	$(RUN) -m scripts.demo

help: ## this list; times are for two cores, once the environment is there and the kernels are compiled
	@grep -E '^[a-z-]+:.* ## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.* ## /\1\t/' | expand -t 16

test: lint types unit ## lint, types and unit: up to 14 minutes

lint: $(VENV)/ready ## ruff: seconds
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: $(VENV)/ready ## mypy: half a minute
	$(RUN) -m mypy

unit: $(VENV)/ready ## the tests: up to 13 minutes, two thirds of it without PyTorch
	$(RUN) -m pytest -q $(PARALLEL) $(SELECTED) $(RECORDED)

test-captures: $(VENV)/ready ## all tests of captures: 15 minutes (needs onnx-ops[torch])
	$(RUN) -m pytest -q $(PARALLEL) --full tests/capture

select: $(VENV)/ready ## finds the tests of captures that unit leaves out: 30 minutes (needs onnx-ops[torch])
	$(RUN) -m pip install --quiet --editable '.[select]'
	mkdir -p build
	COVERAGE_FILE=build/coverage $(RUN) -m pytest -q $(PARALLEL) tests/capture --junitxml build/coverage.xml \
	  --cov onnx_ops --cov-branch --cov-context test --cov-report ''
	$(RUN) -m scripts.covered_tests

test-full: $(VENV)/ready ## all tests, with all combinations of dtypes and attributes, where unit has every two of them
	$(RUN) -m pytest -q $(PARALLEL) --full $(RECORDED)

test-oldest: $(OLDEST)/ready ## the tests with the lower bounds of pyproject.toml (Python 3.11)
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL) $(RECORDED)

test-newest: $(NEWEST)/ready ## captures, and what another version may break, with the newest PyTorch (some gigabytes)
	$(NEWEST)/bin/python -m pytest -q $(PARALLEL) tests/capture tests/trainings $(SMOKE) -k 'not $(LIBRARY)' $(RECORDED)

smoke-oldest: $(OLDEST)/ready ## the part of test-oldest that CI runs: 2 minutes
	$(OLDEST)/bin/python -m pytest -q $(PARALLEL) $(SMOKE) $(WITHOUT_KERNELS) -k 'not ($(LIBRARY) or $(KERNELS))'

fuzz: $(VENV)/ready ## random calls and graphs on all backends: 3 minutes, or make fuzz SECONDS=600 SEED=7
	$(RUN) -m pytest -q tests/results/test_fuzz.py --fuzz-seconds $(or $(SECONDS),180) --fuzz-seed $(or $(SEED),0)

test-web: $(VENV)/ready $(WEB) ## the function bodies in onnxruntime-web under Node, and the page in Chromium
	$(RUN) -m pytest -q tests/web

web: $(VENV)/ready $(WEB) ## the page in the browser, until it is interrupted: make web PORT=8000
	$(RUN) -m scripts.web $(if $(PORT),--port $(PORT))

bench: $(VENV)/ready ## times of the kernels, for docs/speed.md
	$(RUN) -m scripts.bench

bench-training: $(VENV)/ready ## times of whole training steps beside PyTorch's (needs onnx-ops[torch])
	$(RUN) -m scripts.bench_training

bench-memory: $(VENV)/ready ## peak memory of training steps beside PyTorch's, on Linux (needs onnx-ops[torch])
	$(RUN) -m scripts.bench_memory

beside-torch: $(VENV)/ready ## the trainings beside the same in PyTorch (needs onnx-ops[torch])
	$(RUN) -m scripts.trainings.beside_torch

zoo: $(ZOO)/ready ## captures models of other packages, for docs/models.md, and runs docs/fine-tuning.md: two hours, or make zoo ONLY=timm (needs PyTorch in .venv)
	$(ZOO)/bin/python -m pytest -q tests/capture/programs/test_guide.py -k fine_tuning
	$(ZOO)/bin/python -m scripts.zoo --resume --jobs 2 $(if $(ONLY),--only $(ONLY))

zoo-speed: $(ZOO)/ready ## speed and memory of some of them next to PyTorch's, for docs/models.md: 25 minutes on a quiet machine
	$(ZOO)/bin/python -m scripts.zoo.speed
	$(ZOO)/bin/python -m scripts.zoo --report

models: $(VENV)/ready ## captures the steps of the trainings anew (needs onnx-ops[torch])
	$(RUN) -m models.capturing

accuracy: $(VENV)/ready ## errors of the ops, for docs/accuracy.md
	$(RUN) -m scripts.accuracy

docs: $(VENV)/ready ## writes docs/ops, and docs/capture.md (needs onnx-ops[torch])
	$(RUN) -m scripts.docs
	@if $(RUN) -c 'import onnxscript, torch' 2>/dev/null; then $(RUN) -m scripts.capture_docs; \
	  else echo "docs/capture.md is left as it is: it needs PyTorch and onnxscript"; fi

site: $(SITE)/ready $(FLOWCHARTS) ## the documentation as a site in build/site; sources are linked with make site REPOSITORY=https://...
	PATH="$(CURDIR)/$(SITE)/bin:$$PATH" NO_MKDOCS_2_WARNING=1 REPOSITORY=$(REPOSITORY) \
	  $(SITE)/bin/python -m mkdocs build --strict --config-file scripts/site/mkdocs.yml
	@echo "Look at it with: $(PYTHON) -m http.server --directory build/site"

wheel: $(RELEASE)/ready ## a wheel for this platform with compiled kernels, on x86-64 Linux also one for aarch64, tried in fresh environments (needs a C compiler): 20 minutes at first
	$(RELEASE)/bin/python -m scripts.release.platform_wheel
	$(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(RELEASE)/bin/python -m scripts.release.platform_wheel --target aarch64-linux)

release-check: $(RELEASE)/ready ## builds wheel and sdist, and tries each in a fresh environment; README's code if .venv has PyTorch
	$(RELEASE)/bin/python -m scripts.release.check --packages-of $(VENV)

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

$(NEWEST)/ready: pyproject.toml
	$(PYTHON) -m venv $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --upgrade pip
	$(NEWEST)/bin/python -m pip install --quiet --editable '.[demo,test,torch]'
	touch $@

$(SITE)/ready: pyproject.toml
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/python -m pip install --quiet --editable '.[site]'
	touch $@

$(RELEASE)/ready: pyproject.toml
	$(PYTHON) -m venv $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --editable '.[cli,release]'
	touch $@

# The wheels of the second list require torchvision or triton, whose wheels are for other builds of PyTorch.
$(ZOO)/ready: pyproject.toml scripts/zoo/without_dependencies.txt $(VENV)/ready
	$(PYTHON) -m venv $(ZOO)
	$(RUN) -c 'import site; print(*site.getsitepackages())' > \
	  `$(ZOO)/bin/python -c 'import site; print(*site.getsitepackages())'`/packages_of_venv.pth
	$(ZOO)/bin/python -m pip install --quiet --editable '.[torch,zoo]'
	$(ZOO)/bin/python -m pip install --quiet --no-deps --requirement scripts/zoo/without_dependencies.txt
	touch $@

web-packages: $(WEB) ## what test-web and web need from npm

native-package: $(WEB) ## onnxruntime-node, in which test-web then also tests the trainer in JavaScript (300 MB)
	cd scripts/web && npm install --no-save --onnxruntime-node-install=skip onnxruntime-node

$(WEB): scripts/web/package.json scripts/web/package-lock.json
	cd scripts/web && npm ci
	touch $@

$(FLOWCHARTS): scripts/site/package.json scripts/site/package-lock.json
	cd scripts/site && npm ci
	touch $@

clean: ## removes environments, packages from npm and caches
	rm -rf $(VENV) $(OLDEST) $(NEWEST) $(ZOO) $(SITE) $(RELEASE) scripts/web/node_modules scripts/site/node_modules build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
