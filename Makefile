# Two targets do everything on a fresh machine: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUN_STAMP := $(VENV)/.run-stamp
DEV_STAMP := $(VENV)/.dev-stamp
PYTEST := $(BIN)/python -m pytest
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install

.PHONY: help demo lint test test-slow test-all fuzz chaos e2e vm monitoring-test packages binary packaging-test \
    image manifests image-test bench proto format lock clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 18

demo: $(RUN_STAMP)  ## run the daemon on a simulated host with a fake kubelet, and show what it does
	$(BIN)/python -m nodeagent demo $(ARGS)

SHELL_SCRIPTS := .ci/run $(wildcard packaging/*.sh packaging/deb/*.p* packaging/deb/p* packaging/deb/rtupdate tests/*/*.sh)
lint: $(DEV_STAMP)  ## style, types, spelling, shell scripts, import contracts, rules of the repository
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/shellcheck $(sort $(SHELL_SCRIPTS))
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_repository.py

UNIT := $(PYTEST) -n 4 --dist worksteal tests --ignore=tests/blackbox --ignore=tests/test_repository.py
BLACKBOX := $(PYTEST) --dist worksteal tests/blackbox
# Eight or more of these tests share two processors, and wait for real time. So each that fails is run once more,
# alone; both results are printed, and a test that fails twice ends the run.
ALONE := -n 0 --last-failed --last-failed-no-failures none --maxfail 5
test: lint  ## lint, unit tests and the quick black-box tests; ARGS="PATH -k WORD": only those tests
ifdef ARGS
	$(PYTEST) $(ARGS)
else
	$(UNIT) -m "not slow and not bench"
	$(BLACKBOX) -n 8 -m "not slow and not bench" || $(BLACKBOX) -m "not slow and not bench" $(ALONE)
endif

SLOW := $(PYTEST) --dist worksteal -m "slow and not bench" $$(grep -rlE --include='test_*.py' 'mark\.slow' tests)
test-slow: $(DEV_STAMP)  ## the tests that wait for seconds of real time
	$(SLOW) -n 16 || $(SLOW) $(ALONE)

test-all: test test-slow  ## all tests of the daemon as a process and below

SECONDS_OF_FUZZ ?= 300
fuzz: $(DEV_STAMP)  ## damaged inputs of all kinds, SECONDS_OF_FUZZ=300
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS_OF_FUZZ) $(ARGS)

chaos: $(DEV_STAMP)  ## long fault tests, then the long tests of e2e (root, Go); ARGS="--quick" for fewer faults
	$(BIN)/python -m compileall -q nodeagent
	$(BIN)/python -m tests.chaos $(ARGS)
	$(BIN)/python -m tests.e2e --long

e2e: $(DEV_STAMP)  ## tests on a real one-node cluster (root, Go; the first run builds Kubernetes)
	$(BIN)/python -m tests.e2e $(ARGS)

vm: $(DEV_STAMP)  ## tests on real kernels in QEMU (root; the first run fetches kernels)
	$(BIN)/python -m compileall -q nodeagent tests/vm
	PYTHONPATH=packaging $(BIN)/python -m tests.vm $(ARGS)

monitoring-test: $(DEV_STAMP)  ## metrics, alerts, dashboard and page in Prometheus and Chromium (Debian)
	$(BIN)/python -m compileall -q nodeagent
	$(BIN)/python -m tests.monitoring $(ARGS)

packages: $(DEV_STAMP)  ## build the .deb and .rpm packages into dist/
	PYTHONPATH=packaging $(BIN)/python -m builder $(ARGS)

binary: $(DEV_STAMP)  ## build an executable that needs no Python, into dist/
	PYTHONPATH=packaging $(BIN)/python -m builder.binary $(ARGS)

packaging-test: $(DEV_STAMP)  ## tests of the packages on booted systems (root; the first run makes them)
	PYTHONPATH=packaging $(BIN)/python -m tests.packaging $(ARGS)

image: $(DEV_STAMP)  ## build the container image into dist/ (root, buildah)
	PYTHONPATH=packaging $(BIN)/python -m builder.image $(ARGS)

manifests: $(DEV_STAMP)  ## generate packaging/manifests from the Helm chart
	PYTHONPATH=packaging $(BIN)/python -m tests.image.manifests

image-test: $(DEV_STAMP)  ## tests of the image and of the manifests (root, podman; the first run makes the bases)
	PYTHONPATH=packaging $(BIN)/python -m tests.image $(ARGS)

bench: $(DEV_STAMP)  ## measure speed and size; prints a table, writes bench-result.json
	$(BIN)/python -m compileall -q nodeagent tests
	$(BIN)/python -m tests.bench $(ARGS)
	$(PYTEST) tests/blackbox tests/cluster -m bench

proto: $(DEV_STAMP)  ## generate nodeagent/kubelet/api anew from proto/
	$(BIN)/python proto/generate.py

format: $(DEV_STAMP)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock:  ## resolve the dependencies anew (needs pip-tools)
	cd requirements && pip-compile --quiet --upgrade --generate-hashes --strip-extras \
	    --no-emit-find-links --no-emit-index-url --no-emit-trusted-host -o runtime.lock runtime.in
	cd requirements && pip-compile --quiet --upgrade --generate-hashes --strip-extras \
	    --no-emit-find-links --no-emit-index-url --no-emit-trusted-host --allow-unsafe -o dev.lock runtime.in dev.in

clean:  ## remove what the targets made
	rm -rf $(VENV) dist bench-result.json

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "nodeagent needs Python 3.11 or newer: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || { echo "nodeagent needs the venv module of $(PYTHON) (Debian: apt install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(RUN_STAMP): requirements/runtime.lock | $(BIN)/python
	$(PIP) --require-hashes -r requirements/runtime.lock
	$(BIN)/python -m compileall -q nodeagent
	touch $@

$(DEV_STAMP): requirements/dev.lock pyproject.toml | $(BIN)/python
	$(PIP) --require-hashes -r requirements/dev.lock
	$(PIP) --no-deps --no-build-isolation -e .
	touch $(RUN_STAMP) $@
