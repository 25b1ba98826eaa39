# Everything a developer does has a target here; `make help` lists them.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PEERS ?= .venv-peers
PEERS_PYTHON ?= $(PYTHON)
MOTO := .venv-moto
MLFLOW := .venv-mlflow
DRAWS ?= 20
ARRAY ?= 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
unexport PYTHONDONTWRITEBYTECODE  # without byte code each process compiles all that it imports: half the time of tests

.PHONY: help setup demo test check format protos test-search test-runs test-combinations test-benchmarks test-kills test-pages test-browser test-cluster buckets mlflow bench bench-docs docs images reference release publish screenshots kind-up clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.runs: pyproject.toml constraints.txt  # what a run needs
	PYTHON='$(PYTHON)' scripts/environment $(VENV) local
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt
	PYTHON='$(PYTHON)' scripts/environment $(VENV) dev
	@touch $(VENV)/.runs $@

setup: $(VENV)/.installed ## a virtual environment with all that development needs

demo: $(VENV)/.runs ## run experiments/digits.yaml on this machine, to a finished record with a report
	$(BIN)/fedstrata run experiments/digits.yaml --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: setup ## unit, service and chart tests: no root, no Kubernetes
	$(BIN)/python -m pytest --numprocesses $$(($$(getconf _NPROCESSORS_ONLN) + 1)) --dist loadfile --no-loadscope-reorder  # the longest come first, and many wait

test-search: setup ## properties tried on many more examples, drawn anew each time: two minutes
	$(BIN)/python -m pytest tests/unit -m hypothesis --hypothesis-profile search --timeout 1200 --numprocesses auto --dist loadfile

test-runs: setup ## whole runs side by side, in many processes, killed, replayed, with certificates that change: eight minutes
	$(BIN)/python -m pytest -m runs --numprocesses auto --dist loadfile --ignore=tests/services/faults/test_fuzz.py
	$(BIN)/python -m pytest tests/services/faults/test_fuzz.py -m runs  # its bound on memory is of a process of its own

test-combinations: setup ## features of the experiment file two by two: twenty minutes; DRAWS=5 for fewer runs, ARRAY=1 for others
	$(BIN)/python -m pytest tests/combinations -m combinations --draws $(DRAWS) --array-seed $(ARRAY)

test-benchmarks: setup ## every benchmark by its command, as small as it goes: three minutes
	$(BIN)/python -m pytest tests/services/commands/test_benchmarks.py -m benchmarks

test-kills: setup ## whole runs whose processes are killed, links cut, disks full: twenty minutes
	$(BIN)/python -m pytest tests/services -m kills

test-pages: setup ## the pages for new users, followed word for word: one to three minutes
	$(BIN)/python -m pytest tests/services -m pages

test-browser: setup ## the live page and the report in Chromium (Debian's chromium and chromium-driver): three minutes
	$(BIN)/python -m pytest tests/browser -m browser

test-cluster: setup ## end-to-end tests on the Kubernetes cluster that KUBECONFIG names, its images loaded
	$(BIN)/python -m pytest tests/cluster -m cluster

$(PEERS)/.installed: benchmarks/peers/requirements.txt
	$(PEERS_PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/pip install --quiet --requirement benchmarks/peers/requirements.txt
	@touch $@

$(MOTO)/.installed: tests/support/moto.txt
	$(PYTHON) -m venv $(MOTO)
	$(MOTO)/bin/pip install --quiet --requirement tests/support/moto.txt
	@touch $@

buckets: $(MOTO)/.installed ## a server of buckets for tests of sweeps in buckets, which are skipped without it

$(MLFLOW)/.installed: constraints.txt
	$(PYTHON) -m venv $(MLFLOW)
	$(MLFLOW)/bin/pip install --quiet "mlflow==$$(sed -n 's/^mlflow-skinny==//p' constraints.txt)"
	@touch $@

mlflow: $(MLFLOW)/.installed ## a server of MLflow for tests of trackers in test-kills, which are skipped without it: 850 MB

bench: setup ## the benchmark suite beside its peers, half an hour: a table with ratios, and runs/bench.json
	@timeout 600 $(MAKE) --no-print-directory $(PEERS)/.installed || echo "no peers here: the suite goes on without them"
	$(BIN)/python -m benchmarks.suite --peers $(PEERS)/bin/python --json runs/bench.json --figure runs/cost.svg

bench-docs: setup ## put what `make bench` measured last into docs/performance.md and its figure
	$(BIN)/python -m benchmarks.suite --draw runs/bench.json --figure docs/cost.svg --document docs/performance.md

docs: setup ## the documents as a site to read and search without a network, in build/site
	$(BIN)/sphinx-build --fail-on-warning --nitpicky --keep-going --quiet docs build/site

images: ## container images of the three services, with docker, podman or buildah
	scripts/images

release: setup ## wheel, source archive, chart, OCI artefact, site and images of the last commit, with checksums, in dist/
	$(BIN)/python scripts/release.py $(if $(HOME_URL),--home $(HOME_URL)) $(addprefix --arch ,$(ARCH))

publish: setup ## push images and chart of dist/ to REGISTRY with skopeo: bills of materials, and with a key signatures
	$(BIN)/python scripts/publish.py $(or $(REGISTRY),$(error give REGISTRY=registry.example.org/lab))

screenshots: setup ## take docs/page.png and docs/report.png anew, in Chromium: one to two minutes
	$(BIN)/python scripts/screenshots.py

kind-up: ## a kind cluster on this machine with locally built images loaded
	scripts/kind-up

check: setup ## lint, format, types (of benchmarks, too), import contracts, findings in packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/audit.py

format: setup ## put code in form
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

PROTOS := $(wildcard protos/fedstrata/v1/*.proto)

protos: setup ## generate fedstrata/v1 from protos/
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --python_out=. --pyi_out=. $(PROTOS)
	$(BIN)/python -m grpc_tools.protoc --proto_path=protos --grpc_python_out=. $(filter %_service.proto,$(PROTOS))

reference: setup ## pages of docs/reference, from what the code declares
	$(BIN)/python -m scripts.reference

clean: ## remove what builds and runs left
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
