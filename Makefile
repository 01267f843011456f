PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# One more than the two cores it is meant for: tests often wait for a server, a browser or a process to start.
WORKERS ?= 3

# Compiled tests and modules are kept for the next run, whatever the surroundings say.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check quick models fuzz install browser

# The stamp is renewed when the project's requirements change.
$(VENV)/.installed: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

install: $(VENV)/.installed

demo: install
	$(BIN)/vitrail demo

# Debian's Chromium as root, else Playwright's download. Without either, the browser tests are skipped and say so.
browser: install
	@$(BIN)/python tests/browser_of_this_machine.py

# Format, lint, types (beside the tests, shown where they are wrong) and all tests; pytest's summary is the last line.
test check: install browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	@nice $(BIN)/pyright --pythonpath $(BIN)/python > $(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal; tests=$$?; \
	wait $$types || { cat $(VENV)/types.log; exit 1; }; exit $$tests

# The tests without the slow ones, a browser or a GPU.
quick: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not slow and not browser and not gpu and not table"

# Every model of docs/models.md; about half an hour on two cores.
models: install
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m table

# 500 random models against plain loops, some five minutes on one core. VITRAIL_SEED draws the same again.
fuzz: install
	$(BIN)/python tests/random_outcomes.py 500
