# The few words that run this project. Everything a machine needs is installed here, into .venv.
PY ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup tools engines azurite sigstore vllm-server demo test check docs fmt lint type rules unit functional bench bench-loader gpu gpu-wheels storm shapes edge serving loader-arriving loader-faults sim sim-properties sim-10k tracker-load fuzz soak man release clean help
help:            ## what you can make
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed 's/:[^#]*##/\t/'

setup: $(VENV)/.ready  ## a virtual environment with everything that demo and test need
$(VENV)/.ready: pyproject.toml
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	$(BIN)/python -m pip install -q --upgrade 'pip>=24'
	$(BIN)/python -m pip install -q -e '.[dev]'
	touch $@

# The demo needs a tenth of what the tests do. What `make setup` made serves as well.
$(VENV)/.demo: pyproject.toml
	test -x $(BIN)/python || $(PY) -m venv $(VENV)
	test $(VENV)/.ready -nt pyproject.toml || $(BIN)/python -m pip install -q --disable-pip-version-check -e '.[demo]'
	touch $@

demo: $(VENV)/.demo  ## the main job on this machine: S3 server, tracker, four agents, one pull storm (KEEP=1 leaves it running)
	$(BIN)/python -m loadtest.demo $(if $(KEEP),--keep)

# Two workers a core: many tests wait for a daemon. A file's tests stay together: those of pods and namespaces
# share names on the machine.
JOBS ?= $(shell expr 2 \* $$(nproc))
PYTEST = $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --durations=15
# A test that measures time may fail for its neighbour's load: what failed is run again alone, and must pass then.
test: setup      ## all tests, the slowest ones listed (JOBS=4)
	$(PYTEST) || $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none

unit: setup      ## the quick tests: no daemons, no root, nothing marked slow
	$(PYTEST) --durations=5 tests/core tests/arch tests/loader/plan tests/loader/format tests/io/peers/protocol tests/io/disk tests/io/blobs tests/cli/support \
	  -m 'not slow and not functional and not netns and not gpu'

check: setup tools engines azurite sigstore lint type rules docs test  ## what CI runs: format, lint, types, import rules, the docs, tests

fuzz: setup      ## odd inputs at every door to strangers until the time is over (MINUTES=60)
	$(BIN)/python -m tests.fuzz.run --minutes $(or $(MINUTES),60)

docs: setup      ## the documentation as a site in build/site; a link to nothing is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

tools:           ## Debian packages that some tests drive (root only; else those tests skip)
	sh .ci/install-tools

engines: setup   ## source of vLLM and SGLang, which contract tests read (offline those skip)
	$(BIN)/python .ci/install_engines.py

azurite:         ## a stand-in for Azure's blobs, which tests of az:// read from (npm; offline those skip)
	sh .ci/install-azurite

sigstore:        ## a private Sigstore, which tests of keyless signatures sign by (npm; offline those skip)
	sh .ci/install-sigstore

vllm-server: setup  ## a real vLLM server on this CPU in front of real agents (downloads 400 MB; three quarters of an hour on two cores)
	$(BIN)/python .ci/install_vllm.py
	$(BIN)/python -m loadtest.vllm_server

fmt: setup       ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
type: setup
	$(BIN)/mypy
rules: setup
	$(BIN)/lint-imports

sim: setup       ## storms in virtual time, each kind of fault beside a calm one (NODES=100 CHUNKS=256)
	$(BIN)/python -m p2pcache.sim table --nodes $(or $(NODES),100) --chunks $(or $(CHUNKS),256)
sim-properties: setup  ## thousands of random small storms with faults that must keep the laws, other ones each time (COUNT=2000 SEED=the time)
	$(BIN)/python -m p2pcache.sim properties --count $(or $(COUNT),2000) --seed $(or $(SEED),$(shell date +%s))
sim-10k: setup   ## 10,000 nodes in virtual time on one core, the deciders compiled (gcc, a quarter of an hour; NODES=10000 CHUNKS=256)
	$(BIN)/python -m loadtest.compiled storm --nodes $(or $(NODES),10000) --chunks $(or $(CHUNKS),256)

bench: setup     ## loopback: one to one through two real agents beside raw sendfile, then up and down at once
	$(BIN)/python -m loadtest.loopback
	$(BIN)/python -m loadtest.updown
serving: setup   ## what a storm costs the requests of an engine on the seeding node, governor off and on (root)
	$(BIN)/python -m loadtest.serving
loader-arriving: setup  ## loads of a model that still arrives beside plain pulls, over 1 Gbit/s links (root)
	$(BIN)/python -m loadtest.loader_arriving --rate 1gbit --size 768MiB
loader-faults: setup  ## loads under faults: right bytes or a clear error (LOADS=1000 SEED=1)
	$(BIN)/python -m loadtest.loader_faults --loads $(or $(LOADS),1000) --seed $(or $(SEED),1)

bench-loader: setup  ## weights from page cache into tensors, beside safetensors, Run:ai's streamer and fastsafetensors
	$(BIN)/python -m pip install -q -e '.[loader-rivals]'
	$(BIN)/python -m loadtest.bench_loader
# GPU_OFFLINE=1: with the packages of PY and wheels from WHEELS, no registry. SHORT=1: an answer in ten minutes.
WHEELS ?= build/gpu-wheels
gpu: $(if $(GPU_OFFLINE),,setup)  ## the loader's GPU tests and its benchmark to a GPU, beside its rivals (torch with CUDA; SHORT=1 GPU_OFFLINE=1)
	$(if $(GPU_OFFLINE),,-$(BIN)/python -m pip install -q -e '.[loader-rivals]')
	PY=$(if $(GPU_OFFLINE),$(PY),$(BIN)/python) GPU_OFFLINE=$(GPU_OFFLINE) SHORT=$(SHORT) WHEELS=$(WHEELS) sh loadtest/bench_gpu/run.sh
gpu-wheels:      ## the wheels that `make gpu GPU_OFFLINE=1` needs beside torch, to carry to a machine without a registry (GPU_PYTHON=3.12)
	$(PY) -m pip download -q --no-deps --only-binary=:all: -d $(WHEELS) --python-version $(or $(GPU_PYTHON),3.12) --implementation cp \
	  $(foreach n,39 35 34 31 30 28 27 24 17,--platform manylinux_2_$(n)_x86_64) --platform manylinux2014_x86_64 \
	  aiohttp aiohappyeyeballs aiosignal attrs blake3 click fastsafetensors==0.5.0 frozenlist hypothesis idna iniconfig instanttensor==0.2.2 \
	  msgspec multidict packaging pluggy prometheus-client propcache psutil pygments pytest==9.2.0 pytest-asyncio==1.5.0 \
	  pytest-timeout==2.4.0 rich runai-model-streamer==0.17.0 humanize safetensors sortedcontainers typing-extensions uvloop yarl
storm: setup     ## eight agents in shaped network namespaces (root)
	$(BIN)/python -m loadtest.storm --nodes 8 --rate 50mbit --origin-rate 50mbit --size 128MiB
shapes: setup    ## real storms in the shapes of users, one table (root; half an hour; ONLY='4 MiB' for some rows)
	$(BIN)/python -m loadtest.shapes $(if $(ONLY),--only '$(ONLY)')
edge: setup      ## one pull from storage and one from a node over 50 Mbit/s and 40 ms, beside plain TCP (root)
	$(BIN)/python -m loadtest.edge
tracker-load: setup  ## 10,000 simulated agents against one tracker on a core of its own (AGENTS=10000 SECONDS=60)
	$(BIN)/python -m loadtest.trackerload --agents $(or $(AGENTS),10000) --seconds $(or $(SECONDS),60)
soak: setup      ## random work, faults and kills on real agents, everything compared (twice MINUTES=60 SEED=1)
	$(BIN)/python -m loadtest.soak --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)
	$(BIN)/python -m loadtest.soak.pool --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)
man: setup       ## manual pages into build/man
	$(BIN)/python .ci/man_pages.py build/man
release: setup   ## wheel, sdist, manual pages, chart, image and checksums into dist/, then the tag (TAG=no IMAGE=no)
	TAG=$(or $(TAG),yes) IMAGE=$(or $(IMAGE),yes) sh .ci/release
clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
