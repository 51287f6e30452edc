# Two targets matter: 'make demo' shows the whole thing on containers of this machine, 'make test' runs all that CI runs.
# Both install what they need (Debian or Ubuntu, as root or with sudo) and nothing outside .venv and the distribution's packages.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
SUDO := $(shell test "$$(id -u)" = 0 || echo sudo)
# What the sandbox and the tests need; podman's helpers are named since nothing recommended is installed. Of systemd, tests
# need systemd-analyze alone; the package does not replace the init of a machine.
PACKAGES := podman runc crun netavark aardvark-dns iptables nftables catatonit mmdebstrap iproute2 openssh-client python3-venv cron gcc libc6-dev \
    systemd strace
# The browser that looks at the report's page; Debian's names, and needed only where none is on PATH.
BROWSER_PACKAGES := chromium chromium-driver
DEMO := demo
MPI_ALONE := -e python_env_framework=none -e nccl_install=never -e horovod_install=never
# More options for the demo's provision; with those of MPI_ALONE it ends after MPI.
DEMO_OPTIONS ?=
DEMO_INVENTORY := inventories/sandbox/inventory.ini
# How many groups of tests on nodes run at a time. Tests with a deadline of seconds need a core each: one group per core
# of a small machine.
WORKERS ?= 2
# How often 'make test-long' repeats the tests that depend on chance.
REPEAT ?= 20
# Programs start faster with their bytecode kept, whatever this shell's environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help
help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

.PHONY: system
system:  ## Install the distribution's packages that the sandbox needs (skipped where they are there)
	@missing=$$(for package in $(PACKAGES); do \
	    dpkg-query -W -f '$${Status}\n' "$$package" 2>/dev/null | grep -q 'ok installed' || echo "$$package"; done); \
	if test -n "$$missing"; then \
	    echo "Installing" $$missing >&2; \
	    $(SUDO) apt-get -q update >/dev/null; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $$missing >/dev/null; \
	fi

# Packages come from locks with a sha256 for each file ('make dev-locks'). Each has a wheel for x86_64 and aarch64 with
# Python 3.11 to 3.14. Elsewhere, SOURCES=1 builds the others from their locked sources, with build tools that no lock has.
LOCKS := tools/locks
SOURCES ?=
INSTALL := $(BIN)/pip install --quiet --require-hashes $(if $(SOURCES),,--only-binary :all:)

# The demo needs what clusterctl itself takes, which is a quarter of the packages. Tests and linters come on top.
$(VENV)/.runs: pyproject.toml $(LOCKS)/run.txt | system
	@echo "Making $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(INSTALL) --requirement $(LOCKS)/run.txt
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -c 'from clusterctl.support import content; content.collections_path()'  # links the collection for ansible's tools
	@touch $@

$(VENV)/.ready: $(VENV)/.runs $(LOCKS)/dev.txt
	@echo "Adding the packages of tests and linters to $(VENV)" >&2
	@$(INSTALL) --requirement $(LOCKS)/dev.txt
	@touch $@

.PHONY: venv
venv: $(VENV)/.ready  ## Make the virtual environment with clusterctl and what its tests need

# MPI is proven before the software of training is there: a first verdict in half of the time.
.PHONY: demo
demo: $(VENV)/.runs  ## Four containers become one proven MPI cluster; ends with how to log in and how to clean up
	@$(BIN)/clusterctl sandbox up --name $(DEMO) --nodes 4 --inventory $(DEMO_INVENTORY)
	@$(BIN)/clusterctl provision --yes $(DEMO_OPTIONS) $(MPI_ALONE) $(DEMO_INVENTORY)
	@echo
	@echo "MPI works on four nodes. PyTorch, NCCL and Horovod are next."
	@echo
	@$(BIN)/clusterctl provision --yes $(DEMO_OPTIONS) $(DEMO_INVENTORY)
	@echo
	@echo "Four nodes, one cluster. What now?"
	@echo "  log in      $(BIN)/clusterctl sandbox ssh --name $(DEMO) node1"
	@echo "  run MPI     mpirun --hostfile /etc/clusterctl/hostfile hostname   (on node1)"
	@echo "  prove again $(BIN)/clusterctl validate $(DEMO_INVENTORY)"
	@echo "  clean up    make demo-clean"

.PHONY: demo-clean
demo-clean: $(VENV)/.runs  ## Take the demo's containers down
	@$(BIN)/clusterctl sandbox down --name $(DEMO)

# ansible-lint takes a minute or two, so it runs where the change (tests/changed.py) touched what it reads.
ANSIBLE_LINTED := '*.yml' '*.yaml' '*.j2' plugins .ansible-lint $(LOCKS)/dev.txt

PLUGINS := ansible_collections.clusterctl.hpc.plugins

.PHONY: lint
lint: venv  ## ruff, mypy, yamllint; ansible-lint where YAML or plugins changed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=.ansible/collections $(BIN)/mypy --explicit-package-bases --python-version 3.11 -p $(PLUGINS).action -p $(PLUGINS).plugin_utils
	$(BIN)/yamllint --strict .
	@changed=$$($(BIN)/python tests/changed.py $(ANSIBLE_LINTED)); if test -n "$$changed"; then \
	    echo "$(BIN)/ansible-lint --offline --strict"; $(BIN)/ansible-lint --offline --strict; \
	else echo "Left out: ansible-lint, as no YAML, template or plugin changed. CLUSTERCTL_TEST_BASE=all runs it."; fi

.PHONY: docs
docs: venv  ## Build the documentation site into build/site, without a network; a dead link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.PHONY: unit
unit: venv  ## Tests that need no node; four at a time, since many wait for a process
	$(BIN)/pytest tests/unit tests/rehearsal -n 4 --dist worksteal -q

# Of molecule's scenarios, the one of all roles; 'make molecule' and 'make test-all' run the roles' own too.
SCENARIOS := $(addprefix tests/molecule/test_scenarios.py::,test_all_roles_make_one_cluster test_every_role_has_a_scenario)

ON_NODES := $(BIN)/pytest -n $(WORKERS) --dist loadgroup --no-loadscope-reorder -q --durations=60 -m 'not long'

.PHONY: cluster
cluster: venv  ## Tests on sandboxes of containers, some groups of files at a time: provisioning, validation, planted faults
	$(ON_NODES) tests/cluster

.PHONY: nodes
nodes: venv  ## 'cluster' and the scenario of all roles in one run, so that all workers end at about the same time
	$(ON_NODES) tests/cluster $(SCENARIOS)

.PHONY: browser
browser: venv  ## The report's page in a headless Chromium, which it installs where there is none
	@if ! command -v chromedriver >/dev/null || ! command -v chromium google-chrome >/dev/null; then \
	    echo "Installing $(BROWSER_PACKAGES)" >&2; \
	    $(SUDO) apt-get -q update >/dev/null; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $(BROWSER_PACKAGES) >/dev/null; \
	fi
	$(BIN)/pytest tests/browser -q --durations=5

INFINIBAND_PACKAGES := ibsim-utils libumad2sim0 infiniband-diags opensm

.PHONY: test-infiniband
test-infiniband: venv  ## Doctor's look at a fabric that ibsim simulates, with planted faults; installs ibsim and infiniband-diags
	@if ! command -v ibsim >/dev/null || ! command -v ibqueryerrors >/dev/null || ! command -v opensm >/dev/null; then \
	    echo "Installing $(INFINIBAND_PACKAGES)" >&2; \
	    $(SUDO) apt-get -q update >/dev/null; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $(INFINIBAND_PACKAGES) >/dev/null; \
	fi
	$(BIN)/pytest tests/infiniband -q --durations=5

.PHONY: test-lldp
test-lldp: venv  ## Which switch each node hangs on, as real lldpd daemons in network namespaces tell; root, installs lldpd
	@if ! command -v lldpd >/dev/null; then \
	    echo "Installing lldpd" >&2; \
	    $(SUDO) apt-get -q update >/dev/null; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends lldpd >/dev/null; \
	fi
	$(SUDO) $(BIN)/pytest tests/lldp -q --durations=5

.PHONY: molecule
molecule: venv  ## The scenario of all roles and each role's own, some at a time
	$(BIN)/pytest tests/molecule -n $(WORKERS) -q --durations=0

.PHONY: test-cuda-build
test-cuda-build: venv  ## Compile and link Horovod with NCCL against a CUDA PyTorch; needs nvcc and 40 GB, no GPU
	$(BIN)/pytest tests/cuda_build -q -s --durations=0

.PHONY: test-scale
test-scale: venv  ## What 256 nodes of namespaces show: doctor reaches all, and 128 ranks on 64 pass; 20 minutes, not part of 'test'
	$(BIN)/pytest tests/scale -q -s --durations=0

# How many nodes the figures are measured on; each count is a run of its own.
SCALE_NODES ?= 16 64 256
SCALE_OPTIONS ?=
SCALE_FIGURES := $(VENV)/scale-figures.jsonl

.PHONY: scale-figures
scale-figures: venv  ## What commands cost on $(SCALE_NODES) nodes of namespaces, and the lines for 1,000 and 10,000; hours, not part of 'test'
	@$(BIN)/clusterctl sandbox up --name scale-cache --nodes 1 --inventory $(VENV)/scale-cache/inventory.ini
	@$(BIN)/clusterctl provision --yes --no-validate $(MPI_ALONE) \
	    $(VENV)/scale-cache/inventory.ini; code=$$?; $(BIN)/clusterctl sandbox down --name scale-cache; exit $$code
	@rm -f $(SCALE_FIGURES)
	@for count in $(SCALE_NODES); do \
	    $(BIN)/python tests/scale/scale_figures.py measure $$count --out $(SCALE_FIGURES) $(SCALE_OPTIONS); done
	@$(BIN)/python tests/scale/scale_figures.py table $(SCALE_FIGURES)

.PHONY: test-controllers
test-controllers: venv  ## Each Python and ansible-core that can be had: the wheel's unit tests, and two nodes; not part of 'test'
	$(BIN)/pytest tests/cluster/test_controllers.py -m long -q --durations=0

.PHONY: rehearsal
rehearsal: venv  ## Faults of hardware, planted one at a time on recorded machines: what doctor finds, and whom it blames
	$(BIN)/python tests/rehearsal

# CLUSTERS=4 builds four times as many clusters of each kind.
CLUSTERS ?= 1
# PLANTED=3 plants each fault three times on four real nodes instead; it needs root and podman.
PLANTED ?=
PLANTED_OPTIONS ?=

.PHONY: rehearsal-performance
rehearsal-performance: venv  ## Slow and lossy links, nodes and racks, simulated: who names them, by our rule and three usual ones; minutes
	cd tests/sim && nice ../../$(BIN)/python $(if $(PLANTED),planted_verdicts.py --repeats $(PLANTED) $(PLANTED_OPTIONS),verdicts.py --repeats $(CLUSTERS)) \
	    --out ../../docs/measured/verdicts.md

.PHONY: test-fortran
test-fortran: venv  ## A Fortran program on two nodes of their own; without a cache, Open MPI is compiled for it
	$(BIN)/pytest tests/fortran -q --durations=0

.PHONY: test-tensorflow
test-tensorflow: venv  ## TensorFlow's examples on two nodes of their own; without a cache, Horovod is compiled for it
	$(BIN)/pytest tests/tensorflow -q --durations=0

.PHONY: test-gpu
test-gpu:  ## Checks that need a GPU, with what this machine has; 'Error 3' without one; not part of 'test'
	@$(PYTHON) tests/gpu/gpu_run.py

# The distribution of the machine that a bundle is for, another Python of its environment, and another release of Open MPI.
SYSTEM ?= debian12
BUNDLE_PYTHON ?=
OPENMPI ?=

.PHONY: bundle
bundle: venv  ## What 'make provision-here' needs on a machine without a network with distribution SYSTEM, below 50 MiB, into dist/bundle/
	@$(BIN)/python tools/bundle.py --system $(SYSTEM) $(addprefix --python ,$(BUNDLE_PYTHON)) $(addprefix --openmpi ,$(OPENMPI))

# Options of tools/provision_here.py, such as '--environment /opt/pytorch'.
HERE_OPTIONS ?=

.PHONY: provision-here
provision-here:  ## This very machine becomes a cluster of one from a bundle, without a network, and is proved; root; not part of 'test'
	@$(PYTHON) tools/provision_here.py $(HERE_OPTIONS)

# Where the compiled software of a release goes, for which systems, and options of its provision.
CACHE_WHERE ?= $(CURDIR)/dist/cache
CACHE_IMAGES ?= debian12
CACHE_OPTIONS ?=
RELEASE_CACHE := $(CURDIR)/build/release-cache

.PHONY: release-cache
release-cache: venv  ## Compile for each of CACHE_IMAGES what 'provision' installs, and push it to CACHE_WHERE, signed with your site's key
	@$(BIN)/clusterctl sandbox up --name release-cache --nodes $(words $(CACHE_IMAGES)) $(addprefix --image ,$(CACHE_IMAGES)) \
	    --inventory $(RELEASE_CACHE)/inventory.ini
	@XDG_CACHE_HOME=$(RELEASE_CACHE) $(BIN)/clusterctl provision --yes --no-validate $(CACHE_OPTIONS) $(RELEASE_CACHE)/inventory.ini; \
	    code=$$?; $(BIN)/clusterctl sandbox down --name release-cache; exit $$code
	@XDG_CACHE_HOME=$(RELEASE_CACHE) $(BIN)/clusterctl cache push $(CACHE_WHERE)

.PHONY: wheel
wheel: venv  ## Build the wheels (clusterctl, and clusterctl-launch for pods) and the sdist into dist/, with a bill of materials (CycloneDX)
	rm -f dist/clusterctl-* dist/clusterctl_launch-*
	$(BIN)/python -m build --no-isolation
	$(BIN)/python tools/bill_of_materials.py dist/clusterctl-*.whl
	$(BIN)/python -m build --no-isolation --wheel --outdir dist distributions/launch

# The tag that is released, such as v0.2.0.
TAG ?=

.PHONY: publishable
publishable: venv  ## What keeps this checkout from being published: a placeholder, versions that differ, a changelog that is not cut
	@$(BIN)/python tools/publishable.py $(addprefix --tag ,$(TAG))

# SANITY='validate-modules pylint' runs these sanity tests alone; SANITY=none builds and installs without any.
SANITY ?=

# Seconds of processor time, so that 'make test' runs it; tests/unit/test_sanity_names.py holds what pylint found most.
.PHONY: sanity
sanity: venv  ## The quickest telling part of ansible-test sanity: options and documentation of modules agree
	@$(MAKE) --no-print-directory collection SANITY=validate-modules

.PHONY: collection
collection: venv  ## Build the Ansible collection into dist/, install it below build/; run antsibull-changelog and ansible-test sanity on it
	$(BIN)/python tools/collection.py $(if $(filter none,$(SANITY)),--build-only,$(addprefix --test ,$(SANITY)))

# ansible-builder is not among the packages of .venv; it needs podman or docker, and a registry with the base image.
BUILDER ?= ansible-builder

.PHONY: execution-environment
execution-environment: venv  ## An image for AWX and ansible-navigator with the collection, into dist/, by ansible-builder and podman
	@$(MAKE) --no-print-directory collection SANITY=none
	$(BUILDER) build -f execution-environment.yml -c build/execution-environment --container-runtime podman -t clusterctl-ee
	podman save --format oci-archive -o dist/clusterctl-ee.tar clusterctl-ee

# KEEP=1 leaves locks, and versions in them, as they are where they still answer what is asked.
KEEP ?=

.PHONY: wheel-locks
wheel-locks: venv  ## Renew the locks of Python wheels that ship with the collection, from the index's metadata
	$(INSTALL) --requirement $(LOCKS)/locks.txt
	$(BIN)/python tools/wheel_locks.py $(if $(KEEP),--keep)

.PHONY: dev-locks
dev-locks: venv  ## Renew the locks of Python packages for development and CI, after a change of pyproject.toml too
	$(INSTALL) --requirement $(LOCKS)/locks.txt
	$(BIN)/python tools/dev_locks.py $(if $(KEEP),--keep)

.PHONY: unit-fast
unit-fast: venv
	$(BIN)/pytest tests/unit tests/rehearsal -n 3 --dist worksteal -q -m 'not programs'

.PHONY: test-fast
test-fast: venv  ## What to run at every save: lint, and the unit tests that start no other program
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint unit-fast

# Lint and sanity use one core and the unit tests wait for half of their time, so they run side by side.
.PHONY: lint-and-unit
lint-and-unit: venv
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint unit sanity

.PHONY: test
test: lint-and-unit docs browser nodes  ## What a change needs, in the order in which a mistake is cheapest to find

.PHONY: test-all
test-all: export CLUSTERCTL_TEST_BASE := all
test-all: SCENARIOS := tests/molecule
test-all: lint-and-unit docs browser nodes  ## 'test' with nothing left out

# Repeats drawn moments and faults of an earlier run.
SEED ?= $(shell date +%s)

.PHONY: test-long
test-long: export CLUSTERCTL_TEST_BASE := all
test-long: venv  ## Repetitions and long tests: interrupts $(REPEAT) times, then test-fuzz, test-sim, test-scale, test-infiniband, test-lldp, test-tensorflow, test-fortran, test-kubernetes
	$(BIN)/pytest tests/cluster -m repeat --repeat $(REPEAT) -n 2 --dist loadgroup --no-loadscope-reorder -q
	CLUSTERCTL_SEED=$(SEED) $(BIN)/pytest tests/cluster -m long -n 2 --dist loadgroup --no-loadscope-reorder -q
	@$(MAKE) --no-print-directory test-fuzz test-sim test-scale test-infiniband test-lldp test-tensorflow test-fortran test-kubernetes

KUBERNETES_PACKAGES := kubernetes-client

.PHONY: test-kubernetes
test-kubernetes: venv  ## 'validate --via …' in pods and 'render --dry-run' against a real API server, compiled once from Debian's sources; root, kubectl, 15 minutes
	@if ! command -v kubectl >/dev/null; then \
	    echo "Installing $(KUBERNETES_PACKAGES)" >&2; \
	    $(SUDO) apt-get -q update >/dev/null; \
	    $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends $(KUBERNETES_PACKAGES) >/dev/null \
	        || echo "The package of kubectl cannot be had, so the tests that need it skip." >&2; \
	fi
	$(BIN)/python tests/kubernetes/api_server_build.py || echo "So the tests that need an API server skip." >&2
	$(BIN)/pytest tests/kubernetes -q -rs --durations=5

# Drawn examples of each property, and seconds of each parser of bytes.
EXAMPLES ?= 500
SECONDS_EACH ?= 60

.PHONY: test-fuzz
test-fuzz: venv  ## Hostile input: hypothesis draws EXAMPLES for each property, atheris takes SECONDS_EACH for each parser of bytes
	$(INSTALL) --requirement $(LOCKS)/fuzz.txt
	CLUSTERCTL_FUZZ=$(EXAMPLES) $(BIN)/pytest tests/unit/hostile_input -n $(WORKERS) --dist worksteal -q
	$(BIN)/python tests/fuzz/byte_parsers.py --seconds $(SECONDS_EACH)

# LOAD busy processes run beside the nodes; '--only WORDS' in FAULTS plants a part of them.
LOAD ?= 0
FAULTS ?=

.PHONY: test-faults
test-faults: venv  ## Plant every fault of tests/faults on six nodes, and print who was named; minutes, not part of 'test'
	$(BIN)/python tests/faults/planted.py --load $(LOAD) $(FAULTS)

# docs/measured/detection-<date>.txt; NOISE is what was measured on real nodes, in per cent (tests/sim/noise.py).
NOISE ?=

.PHONY: test-sim
test-sim: venv  ## Simulated clusters of known truth: what is found, who is blamed wrongly; minutes, not part of 'test'
	cd tests/sim && ../../$(BIN)/python detection.py $(if $(NOISE),--measured $(NOISE)) \
	    --out ../../docs/measured/detection-$$(date -u +%Y-%m-%d).txt
	cd tests/sim && ../../$(BIN)/python measured_on.py --out ../../docs/measured/measured-on-$$(date -u +%Y-%m-%d).txt
