# Two commands do everything, set-up included: `make demo` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test lint lab notebooks results sweeps bench pins clean

help:
	@echo "make demo       set up, then learn and predict benchmark 5.1.1 with the quick preset"
	@echo "make test       set up, then lint and run all tests, notebooks included"
	@echo "make lab        open the notebooks in JupyterLab"
	@echo "make notebooks  execute the committed notebooks that are stale, with the standard preset"
	@echo "make results    gather the committed results into the README's table"
	@echo "make sweeps     run the example sweeps that are not done, and renew their reports (over an hour)"
	@echo "make bench      measure speed side by side with Keras, JAX, PyTorch and the limits of the machine (over an hour)"
	@echo "make pins       renew the tested versions in requirements.txt from pyproject.toml"
	@echo "make clean      remove the environment, results of runs, and caches"
	@echo "PYTHON=python3.12 in front of any of them chooses the Python to set up with."

demo: $(READY)
	@$(BIN)/python -m fml_tf run 5.1.1 --preset quick

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell

lab: $(READY)
	$(BIN)/jupyter lab notebooks

notebooks: $(READY)
	$(BIN)/python -m fml_tf notebooks

results: $(READY)
	$(BIN)/python -m fml_tf results

sweeps: $(READY)
	@for file in sweeps/*.yaml; do name=$$(basename $$file .yaml); \
	    $(BIN)/fml sweep $$file --retry && $(BIN)/fml report runs/$$name --out sweeps/$$name || exit 1; done
	$(BIN)/python benchmarks/choices.py

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

pins: $(READY)
	$(BIN)/pip install --quiet uv
	@echo "# Every package at a tested version, for Python 3.11 to 3.13; made by 'make pins' from pyproject.toml." > requirements.txt
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --fork-strategy fewest \
	    --no-annotate --no-header --quiet >> requirements.txt

# Installs anew only when the pins or the package's metadata change.
$(READY): requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(not (3, 11) <= v <= (3, 13) and \
	    "fml_tf needs Python 3.11 to 3.13, but $(PYTHON) is %d.%d: try make PYTHON=python3.12 demo" % v)'
	@echo "Setting up $(VENV) (once, some minutes)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $(READY)

clean:
	rm -rf $(VENV) runs build dist *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
