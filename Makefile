# The two commands: `make app` starts the dashboard, `make test` runs the tests.
# Both set up what they need; a second run costs seconds.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ADDRESS ?= 127.0.0.1

# Every command that a test starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: setup setup-dev setup-browser app test test-repeated test-fast lint docs bench hardware clean

setup: $(VENV)/.installed
setup-dev: $(VENV)/.installed-dev

$(VENV)/.installed: requirements.txt pyproject.toml setup.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "TorchSplit needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.txt $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements-dev.txt
	@touch $@

setup-browser:
	@sh tools/install_chromium.sh

# HOST counts when given to make alone: some shells export a variable of that name.
app: setup
	$(BIN)/torchsplit app --address $(ADDRESS) $(if $(PORT),--port $(PORT)) $(if $(findstring command,$(origin HOST)),$(foreach name,$(HOST),--host $(name)))

test: setup-dev setup-browser
	$(BIN)/python -m pytest -n 3 --dist worksteal -m "not repeated"

# What `make test` shows, on further random instances, samples, widths, and in longer wholes: continuous integration
# runs it after the other.
test-repeated: setup-dev setup-browser
	$(BIN)/python -m pytest -n 2 --dist worksteal -m repeated

# Without a browser, without what imports torch or starts a process that does, and without what takes long by itself.
test-fast: setup-dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not torch and not browser and not slow and not repeated"

lint: setup-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documents and the API reference as a site, in build/site; nothing is loaded from the network.
docs: setup-dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup-dev
	$(BIN)/python -m benchmarks.run_all

# What only a GPU can show, in at most ten minutes, into docs/reference/hardware.md; without a GPU it says so and ends with 0.
hardware: setup
	$(BIN)/python -m benchmarks.hardware

clean:
	rm -rf $(VENV) build *.egg-info
