# Two commands: `make replicate` runs the main job, `make test` the tests. Both set up what they need in .venv.

# cpu: the default; runs everywhere. cuda: `make replicate ENV=cuda` pins the GPU libraries too.
ENV ?= cpu
SCALE ?= smoke
CORES ?= all
PYTHON ?= python3

# Under Linux the index's torch cannot be imported without the GPU libraries: its CPU builds lie on a page of their own.
LINUX_CPU := $(and $(filter Linux,$(shell uname -s)),$(filter cpu,$(ENV)))
ifeq ($(PIP_NO_INDEX)$(if $(LINUX_CPU),,other),)
export PIP_FIND_LINKS ?= https://download.pytorch.org/whl/cpu/torch/
endif
# uv installs in seconds; it does not read pip's variables by itself: where wheels lie, and to ask no index.
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
INSTALL = $(UV) pip install --quiet --python $(BIN)/python $(if $(PIP_NO_INDEX),--no-index)
UV_VERSION := 0.13.8
UV := .venv/bin/uv
BIN := .venv/bin
READY := .venv/.ready-$(ENV)

.PHONY: replicate test lint format schemas site pins wheelhouse
.DELETE_ON_ERROR:

# After every job Snakemake looks for others, and again after this timespan: its default of a second keeps a core busy.
# Jobs on a GPU take turns on it.
replicate: $(READY)
	@$(BIN)/snakemake --cores $(CORES) --config scale=$(SCALE) --quiet rules --max-jobs-per-timespan 100/3s \
		$(if $(filter cuda,$(ENV)),--resources gpu=1)
	@echo
	@echo "Scorecard: results/$(SCALE)/scorecard.html"
	@echo "Figures:   figures/$(SCALE)/<paper>/    Records: results/$(SCALE)/    Logs: logs/$(SCALE)/"

# The tests start hundreds of processes: what one has compiled, the next ones read.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(READY)
	$(BIN)/pytest --numprocesses auto --dist loadgroup

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/snakefmt --check Snakefile workflow
	$(BIN)/python lint/snakefile.py
	$(BIN)/python lint/docstrings.py
	$(BIN)/python lint/lengths.py
	$(BIN)/python lint/words.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt Snakefile workflow

# The JSON Schemas of the configuration and of records, from the classes that validate them.
schemas: $(READY)
	$(BIN)/leakbench schemas

# The documentation, from docs/ and docstrings, as HTML in site/; without a network.
site: $(READY)
	$(BIN)/mkdocs build --strict --quiet

# Full pins of both environments, from pyproject.toml, for every platform and Python that it names; versions stay as they
# are unless UPGRADE=--upgrade. The CPU set is the CUDA set without the GPU libraries, which a CPU build of torch does not
# use, and with the digests of torch's official CPU builds beside those of its builds on the index.
PIN = UV_FIND_LINKS= $(UV) pip compile --quiet --universal --all-extras --generate-hashes --no-annotate \
	--custom-compile-command "make pins" pyproject.toml
GPU_ONLY = sed -n -E 's/^((nvidia-(cu|nc|nv)|cuda-|triton)[a-z0-9-]*)==.*/--no-emit-package=\1/p'
pins: $(UV)
	$(PIN) $(UPGRADE) --output-file envs/cuda.txt
	cp envs/cuda.txt envs/cpu.txt
	$(PIN) $$($(GPU_ONLY) envs/cuda.txt) --output-file envs/cpu.txt
	sed --in-place '/^torch==/r envs/torch-cpu.txt' envs/cpu.txt

# All that an installation reads, for machines of this kind without a network: docs/install.md. uv and setuptools, which
# some pins are built with, the build system of pyproject.toml, and the pins. pip would prefer the index's torch to a CPU
# build in a folder, so it gets the digests of the CPU builds alone.
wheelhouse: $(UV)
	mkdir -p $@
	$(BIN)/pip download --quiet --dest $@ uv==$(UV_VERSION) setuptools wheel editables \
		$$(sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml)
	cp envs/$(ENV).txt $@/pins.txt
ifneq ($(LINUX_CPU),)
	sed '/^torch==/,/[0-9a-f]$$/d' envs/cpu.txt > $@/pins.txt
	grep '^torch==' envs/cpu.txt >> $@/pins.txt
	sed '$$ s/ .$$//' envs/torch-cpu.txt >> $@/pins.txt
endif
	$(BIN)/pip download --quiet --no-deps --dest $@ --requirement $@/pins.txt
	@echo "Copy this checkout with wheelhouse/, and there: PIP_NO_INDEX=1 PIP_FIND_LINKS=$$""PWD/wheelhouse make replicate"

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' || \
		{ echo "leakbench needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is another one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(READY): envs/$(ENV).txt pyproject.toml | $(UV)
	$(INSTALL) --compile-bytecode --requirement envs/$(ENV).txt
	$(INSTALL) --no-deps --editable .
	@rm -f .venv/.ready-*
	@touch $@
