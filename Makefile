# Everything one types by hand. `make` alone lists the targets; cmake --preset release works without this file.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# A file that includes torch/torch.h takes 2 GB of memory to compile.
JOBS ?= $(shell awk -v cores=$$(nproc) '/MemAvailable/ { fit = int($$2 / 2e6); print fit < 1 ? 1 : fit < cores ? fit : cores }' /proc/meminfo)
CMAKE_FLAGS ?=
PREFIX ?= /usr/local
TEST_FLAGS ?=
BENCH_ARGS ?=
MUTANTS ?=

# $(call configure,preset,folder,flags)
configure = mkdir -p $(2) && echo "-- Configuring $(2) (log: $(2)/configure.log)" && \
  cmake --preset $(1) -DPython3_EXECUTABLE="$$(command -v $(PYTHON))" $(3) $(CMAKE_FLAGS) > $(2)/configure.log
# $(call compile,folder,targets)
compile = echo "-- Building $(1) with $(JOBS) jobs" && cmake --build $(1) -j $(JOBS) $(2:%=--target %)
# $(call test,preset,folder,targets,flags): the tests of one preset, from nothing; two slots a core (cmake/Tests.cmake)
test = scripts/setup.sh build test && test_python=$$($(PYTHON) scripts/python_env.py tests) && \
  $(call configure,$(1),$(2),-DTROIKA_TEST_PYTHON=$$test_python) && $(call compile,$(2),$(3)) && \
  echo "-- Testing $(2)" && ctest --preset $(1) -j $$((2 * $$(nproc))) --output-junit results.xml $(4) $(TEST_FLAGS)
budget = $(PYTHON) scripts/check_budget.py build/results.xml

.PHONY: help setup build install quickstart test test-slow test-all test-gpu test-parity sanitize threads mutants fuzz bench bench-gpu lint tidy format clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install missing system packages, or print the line that does
	@scripts/setup.sh build

build: setup ## Set up, configure and build; the command is build/troika
	@$(call configure,release,build,)
	@$(call compile,build,troika)
	@echo "-- Built: build/troika"

install: setup ## Install the command, the library and its headers: make install PREFIX=DIR
	@$(call configure,release,build,)
	@$(call compile,build,installable)
	@umask 022 && cmake --install build --prefix "$(PREFIX)" > build/install.log  # for every account to use
	@echo "-- Installed in $(PREFIX); programs find it with -DCMAKE_PREFIX_PATH=$(PREFIX)"

quickstart: build ## Train a small GPT on this machine's C++ headers for a minute, then let it write some
	@echo "-- Training recipes/quickstart.toml on 2 ranks; runs/quickstart is overwritten if it is there"
	@build/troika train recipes/quickstart.toml --ranks 2 --overwrite
	@echo "-- A sample of what the model writes:"
	@build/troika generate runs/quickstart --prompt 'template<typename _Tp>'
	@echo "-- The run (recipe, metrics, model) is in runs/quickstart"

test: ## Set up, build, and run every test but the slow ones
	@$(call test,release,build,,-LE '^slow$$')
	@$(budget)

test-slow: ## Run the slow tests; SLICE=0 to 7 for an eighth of them
	@$(call test,release,build,,-L '^$(if $(SLICE),slice-$(SLICE),slow)$$')
	@$(budget)

test-all: ## Run every test, the slow ones too
	@$(call test,release,build,)
	@$(budget)

test-gpu: ## Run the tests that need a GPU, on a machine with one and the CUDA toolkit
	@scripts/setup.sh build test
	@$(call configure,release,build,-DTROIKA_CUDA=ON)
	@$(call compile,build,troika test_cuda test_cuda_ranks)
	@ctest --preset release -L '^gpu$$' --verbose $(TEST_FLAGS)

test-parity: ## Train on every layout there is, against one rank, for hours; PART=2/8 for an eighth
	@scripts/setup.sh build test
	@$(call configure,release,build,)
	@$(call compile,build,parity_complete)
	@build/tests/parity/parity_complete $(PART)

sanitize: ## Run the tests under the address, undefined-behaviour and thread sanitizers
	@$(call test,asan,build-asan,)
	@$(call test,tsan,build-tsan,unit_tests)

threads: ## Run the tests of shared memory, whose members are threads there, under the thread sanitizer
	@scripts/setup.sh build test
	@$(call configure,tsan,build-tsan,)
	@$(call compile,build-tsan,test_comm_shm)
	@ctest --preset tsan -R '^test_comm_shm$$' $(TEST_FLAGS)

mutants: build ## Change one line at a time, 60 times, and see whether the quick tests notice, for up to two hours; MUTANTS=--count=5 for fewer
	@scripts/setup.sh build test && test_python=$$($(PYTHON) scripts/python_env.py tests) && \
	  $(call configure,release,build,-DTROIKA_TEST_PYTHON=$$test_python) && $(call compile,build,) && \
	  $(PYTHON) scripts/mutants.py $(MUTANTS)

fuzz: ## Fuzz the readers of untrusted files with libFuzzer, FUZZ_SECONDS (60) each
	@scripts/setup.sh build test fuzz
	@$(call configure,fuzz,build-fuzz,-DTROIKA_FUZZ_SECONDS=$${FUZZ_SECONDS:-60})
	@$(call compile,build-fuzz,fuzz)
	@ctest --preset fuzz $(TEST_FLAGS)

bench: build ## Time troika against PyTorch and MPI on the same work; BENCH_ARGS=--quick for a short run
	@scripts/setup.sh build test
	@$(call configure,release,build,) && $(call compile,build,table_tool checkpoint_bench own_transformer server_rows_bench)
	@test_python=$$($(PYTHON) scripts/python_env.py tests) && \
	  $(PYTHON) bench/bench.py --troika build/troika --peer-python $$test_python $(BENCH_ARGS)

bench-gpu: ## Time troika against PyTorch on this machine's GPU; where there is none it says so, with exit status 2
	@$(PYTHON) bench/gpu/gpu.py --look $(BENCH_ARGS)
	@scripts/setup.sh build test
	@$(call configure,release,build,)
	@$(call compile,build,troika)
	@$(call compile,build,own_resnet)
	@peer_python=$$($(PYTHON) scripts/python_env.py $(if $(findstring --device cpu,$(BENCH_ARGS)),tests,bench-gpu)) && \
	  $(PYTHON) bench/gpu/gpu.py --troika build/troika --peer-python $$peer_python $(BENCH_ARGS)

lint: ## Check the prose of pages and comments, names in headers, the layers, the components and the format of the tree
	@scripts/setup.sh lint
	@$(PYTHON) scripts/check_docs.py
	@$(PYTHON) scripts/draw_benchmarks.py --check
	@$(PYTHON) scripts/check_layers.py
	@$(PYTHON) scripts/check_components.py
	@$(PYTHON) scripts/check_comments.py
	@$(PYTHON) scripts/check_names.py
	@$(PYTHON) scripts/format.py --check

tidy: ## Check clang-tidy's warnings; what passed once is remembered; CHANGED=25 for what 25 commits change
	@scripts/setup.sh build test lint
	@$(call configure,dev,build-dev,)
	@$(PYTHON) scripts/tidy.py build-dev $(if $(CHANGED),--changed $(CHANGED))

format: ## Format every C++ file in place
	@scripts/setup.sh lint
	@$(PYTHON) scripts/format.py

clean: ## Remove the build folders (downloads stay in the cache)
	rm -rf build build-*
