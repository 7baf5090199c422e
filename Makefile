# make tune   installs what is needed and tunes the first study, end to end
# make test   lints, type-checks and tests
# make bench  measures what tuning costs and gains, as ratios
# make bench-noise  counts how often noise makes a race choose a wrong winner
# make golden-plans  records the plans of the studies, which the tests compare with
# make bench-hooks  measures what following a script costs each of its steps
# make bench-forecast  holds the peaks that plans predicts against measured ones

PYTHON ?= python3.11
VENV ?= .venv
# Kept between clones: torch 2.6 brings several GB.
TORCH26_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autorecompute/torch26-$(firstword $(shell sha256sum constraints.txt pyproject.toml | sha256sum | cut -c1-12))
ORT_VENVS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autorecompute/ort
ORT_VERSIONS ?= 1.17.3 1.18.0 1.19.2
# The same training holds up to 100 MiB more on one processor than on another: the limit is measured where none is given.
MEMORY_LIMIT ?= $$($(VENV)/bin/python studies/bert_mlm/benchmark.py --limit)

.PHONY: install tune test lint test-unit test-integration test-torch26 test-ort-versions test-gpu golden-plans bench bench-noise bench-hooks bench-forecast clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install --quiet --constraint constraints.txt --editable ".[cpu,studies,report]" --group test
	$(VENV)/bin/autorecompute doctor --fix
	touch $@

tune: install
	$(VENV)/bin/autorecompute tune studies/bert_mlm/train.py --target-batch 32 --memory-limit $(MEMORY_LIMIT)

test: lint test-unit test-integration

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

test-unit: install
	$(VENV)/bin/python -m pytest tests/unit

test-integration: install
	$(VENV)/bin/python -m pytest tests/integration

# Skips everything where there is no card; the environment needs the CUDA build of torch.
test-gpu: install
	$(VENV)/bin/python -m pytest tests/gpu

# The integration tests on a PyTorch that ORTModule 1.19.2 runs on as it is. The package is not installed there: a training
# script that imports nothing of it must do without. Left out is what has nothing to do with PyTorch (who kills whom, what
# the clock says, gradients that ORT gets wrong), and the plans of the studies, which are the same there and take minutes.
ONCE = clock golden_plans kernel_kills kills wrong_gradients
test-torch26: $(TORCH26_VENV)/.installed
	PYTHONPATH=$(CURDIR) $(TORCH26_VENV)/bin/python -m pytest tests/integration $(ONCE:%=--ignore tests/integration/test_%.py)

$(TORCH26_VENV)/.installed:
	$(PYTHON) -m venv $(TORCH26_VENV)
	$(TORCH26_VENV)/bin/python -m pip install --quiet --upgrade pip
	sed -e 's/^torch==.*/torch==2.6.0/' -e 's/^sympy==.*/sympy==1.13.1/' constraints.txt > $(TORCH26_VENV)/constraints.txt
	$(TORCH26_VENV)/bin/python -m pip install --quiet --constraint $(TORCH26_VENV)/constraints.txt ".[cpu,studies,report]" --group test
	$(TORCH26_VENV)/bin/python -m pip uninstall --quiet --yes autorecompute
	PYTHONPATH=$(CURDIR) $(TORCH26_VENV)/bin/python -m autorecompute doctor --fix
	touch $@

# What each ORT says of its plans, live. The extensions of 1.17 and 1.18 compile against torch 2.4 at most, and their modules
# against NumPy 1.
test-ort-versions: $(ORT_VERSIONS:%=test-ort-%)

# Make would remove them as mere steps on the way, and install everything again the next time.
.PRECIOUS: $(ORT_VENVS)/%/.installed

test-ort-%: $(ORT_VENVS)/%/.installed
	PYTHONPATH=$(CURDIR) $(ORT_VENVS)/$*/bin/python -m pytest tests/integration/test_plans.py

$(ORT_VENVS)/%/.installed:
	$(PYTHON) -m venv $(ORT_VENVS)/$*
	$(ORT_VENVS)/$*/bin/python -m pip install --quiet --upgrade pip
	sed -e '/^onnxruntime/d' -e '/^nvidia/d' -e '/^triton/d' -e 's/^torch==.*/torch==2.4.1/' -e 's/^numpy==.*/numpy==1.26.4/' \
		-e 's/^sympy==.*/sympy==1.13.1/' constraints.txt > $(ORT_VENVS)/$*/constraints.txt
	$(ORT_VENVS)/$*/bin/python -m pip install --quiet --constraint $(ORT_VENVS)/$*/constraints.txt \
		onnxruntime-training-cpu==$* torch numpy "onnx>=1.16,<1.17" setuptools "transformers>=4.48,<5" \
		cattrs matplotlib nvidia-ml-py optuna psutil rich sympy pytest
	PYTHONPATH=$(CURDIR) $(ORT_VENVS)/$*/bin/python -m autorecompute doctor --fix
	touch $@

golden-plans: install
	$(VENV)/bin/python -m pytest tests/integration/test_golden_plans.py --record-golden

bench: install
	$(VENV)/bin/python studies/bert_mlm/benchmark.py

bench-noise: install
	$(VENV)/bin/python tests/noise_bench.py

bench-hooks: install
	$(VENV)/bin/python tests/hooks_bench.py

bench-forecast: install
	$(VENV)/bin/python tests/forecast_bench.py

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
