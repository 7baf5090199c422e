# make tune   installs what is needed and tunes three studies, end to end: a Llama and a CLIP in plain PyTorch, a BERT in an ORTModule
# make test   tests what may have changed: what is always tested, and the lanes of .ci/lanes.toml whose files have changed
# make test-all   runs every lane; make test-LANE runs one and records that it has passed; make lanes says what is due
# make docs   builds the documentation into site/
# make docs-serve  shows it on this machine, and builds again what is changed
# make system  installs the Debian packages that tests need, where they are missing
# make fuzz  changes studies and archives at random and has every verb read them: CASES=20000, SEED=2, one CASE=17
# make bench-all  runs all benchmarks, and keeps what they print: some hours, and it goes on where it stopped
# make bench  measures what tuning costs and gains, as ratios
# make bench-noise  counts how often noise makes a race choose a wrong winner
# make bench-load  measures what other work on the machine makes of relative figures
# make golden-plans  records the plans of the studies, which the tests compare with
# make golden-plans-check  compares those of all studies; the tests take two of them
# make bench-hooks  measures what following a script costs each of its steps
# make bench-search  replays the search on recorded tables, and shows it beside what Optuna's samplers came to there
# make record-tables  records those tables; takes hours, and goes on where it stopped
# make record-torch-tables  records tables in plain PyTorch; about half an hour each
# make bench-time  plays whole tunings on recorded tables: steps of training until there is an answer, and what it loses
# make bench-live  tunes a model of the tables from scratch, and looks its answer up
# make bench-anchors  trains twice the batch in the same memory, on every study: make bench-anchors ORTMODULE=1 in ORTModules
# make bench-reuse  measures what an answer costs that is known already
# make bench-workers  measures how much sooner several workers are through with one study
# make dashboard-picture  takes the picture of optuna-dashboard in the documentation
# make pictures  tunes a GPT-2, and takes the pictures of its terminal and of its page
# make bench-by-hand  holds the search in plain PyTorch beside the best that people do by hand
# make bench-lengths  holds a config for each length of a batch beside one for all lengths
# make bench-peers  holds it beside the ways of Hugging Face, of PyTorch and of its compiler
# make bench-compiled  holds the search on compiled models beside budgets and checkpoints that are set by hand, of all
#                      four studies or of one: make bench-compiled STUDY=llama_clm LAYERS=4
# make bench-card  on a GPU: holds the answers of whole tunings beside the best that people do by hand
# make card-sitting  on a GPU: the checks that are owed there, nine minutes at a time; CHECK=twice runs one again
# make bench-virtual-card  does so on cards that exist on paper: MODEL="ViT-L" for one of five
# make bench-outside-loss  holds forecasts beside live bytes where the script computes its loss itself
# make bench-torch-overheads  measures what the torch backend costs beside training itself
# make bench-forecast  holds the peaks that plans predicts against measured ones
# make bench-forecast-torch  does so in plain PyTorch, against the bytes of live tensors
# make bench-forecast-models  does so on the models that people train, in float32 and under autocast
# make bench-fake-ranks  a Llama of 70B as one of 64 ranks on fake tensors, and torch's memory trackers beside ours
# make bench-fake  holds what plans --fake tells against real steps, and runs a Llama of 7B on fake tensors
# make bench-estimators  holds plans --fake and other tools' estimates of memory beside real steps
# make bench-torch-versions  lists the plans of every study under two versions of torch: PYTHONS="a/bin/python b/bin/python"
# make bench-droppable  tells how much of what models save single operators can drop
# make bench-harmless  trains every script of the tests with configs that are swapped, and compares all bits
# make bench-own-cost  measures what a training pays for being followed once its search is over, and during it
# make bench-own-cost-ranks  does so in two ranks, with DDP and with FSDP2

PYTHON ?= python3.11
VENV ?= .venv
# Kept between clones, as torch 2.6 brings several GB; made anew when what is installed there changes.
TORCH26_KEY := $(shell { cat constraints.txt; sed -n '/^dependencies/,/^\[project.scripts\]/p' pyproject.toml; } | sha256sum | cut -c1-12)
TORCH26_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autorecompute/torch26-$(TORCH26_KEY)
# The newest torch: a CUDA build, of several GB, kept as well.
NEWEST_TORCH ?= 2.15.0
NEWEST_VENV ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autorecompute/torch$(NEWEST_TORCH)-$(TORCH26_KEY)
ORT_VENVS ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/autorecompute/ort
ORT_VERSIONS ?= 1.17.3 1.18.0
# The same training holds up to 100 MiB more on one processor than on another: the limit is measured where none is given.
LLAMA = --sequence 2048 --vocabulary 4096 --hidden 64 --heads 2 --key-value-heads 1 --attention-dropout 0
LLAMA_LIMIT ?= $$($(VENV)/bin/python studies/limit.py --batch 1 studies/llama_clm/train.py -- $(LLAMA))
CLIP = --size 24 --patch 2 --sequence 64 --layers 2 --hidden 64 --heads 2
CLIP_LIMIT ?= $$($(VENV)/bin/python studies/limit.py --batch 64 --share 0.85 studies/clip_contrastive/train.py -- $(CLIP))
BERT_LIMIT ?= $$($(VENV)/bin/python studies/limit.py studies/bert_mlm/train.py -- --ortmodule)

# What a machine may forbid to keep, each of a thousand processes would compile again.
unexport PYTHONDONTWRITEBYTECODE

# Two test processes, each of which takes whole files, whose tests share what is slow to make. The slowest tests are told, so
# that a run of CI says what to make cheaper.
PYTEST = -m pytest --numprocesses 2 --dist loadfile --durations 25
LANES = $(PYTHON) .ci/lanes.py
RECORD = $(LANES) record $(@:test-%=%)

.PHONY: install install-torch26 system tune test lint test-unit test-fuzz fuzz test-torch26 test-ort-versions test-gpu golden-plans golden-plans-check bench bench-all bench-noise bench-load bench-hooks bench-search bench-time bench-live bench-anchors record-tables record-torch-tables bench-forecast bench-forecast-torch bench-forecast-models bench-fake bench-fake-ranks bench-estimators bench-by-hand bench-lengths bench-vocabulary-head bench-peers bench-compiled bench-outside-loss bench-torch-overheads bench-card card-sitting bench-virtual-card bench-torch-versions bench-droppable bench-harmless bench-own-cost bench-own-cost-ranks clean docs docs-serve test-browser test-workers bench-reuse bench-workers dashboard-picture pictures test-all lanes test-lint test-first-tuning test-smoke test-plain test-train test-ranks test-card test-compiled test-ortmodule test-wheel test-pages test-newest-torch

# Python compiles what is imported, of ten times as many files: that is most of the time of an installation.
QUICKLY = --quiet --no-compile

install: $(VENV)/.installed

install-torch26: $(TORCH26_VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --upgrade pip
	$(VENV)/bin/python -m pip install $(QUICKLY) --constraint constraints.txt --editable ".[ortmodule-cpu,studies,report,postgresql]" --group test --group docs
	$(VENV)/bin/autorecompute doctor --fix
	touch $@

# Where other work runs beside it, two threads that wait for each other take several times as long as one.
tune: export OMP_NUM_THREADS = 1
tune: install
	$(VENV)/bin/autorecompute tune studies/llama_clm/train.py --target-batch 1 --memory-limit $(LLAMA_LIMIT) --max-trials 6 -- --batch {batch} $(LLAMA)
	$(VENV)/bin/autorecompute tune studies/clip_contrastive/train.py --global-batch 64 --memory-limit $(CLIP_LIMIT) --max-trials 5 -- --batch {batch} --accumulate {accumulation} $(CLIP)
	$(VENV)/bin/autorecompute tune studies/bert_mlm/train.py --memory-limit $(BERT_LIMIT) --max-trials 3 -- --ortmodule --batch 32

docs: install
	$(VENV)/bin/mkdocs build --strict

docs-serve: install
	$(VENV)/bin/mkdocs serve

# Debian's own names: a browser, letters for it, and a database server.
SYSTEM_PACKAGES = chromium fonts-dejavu-core postgresql
SUDO ?= $(if $(filter 0,$(shell id -u)),,sudo)
system:
	@for package in $(SYSTEM_PACKAGES); do \
		dpkg --status $$package 2>/dev/null | grep --quiet '^Status: install ok installed' || missing="$$missing $$package"; \
	done; \
	test -z "$$missing" || { $(SUDO) apt-get update --quiet && DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install --quiet --yes --no-install-recommends $$missing; }

test:
	$(LANES) run

test-all:
	$(LANES) run --all

lanes:
	@$(LANES) due

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --config-file benchmarks/mypy.ini

test-lint: lint

# Changes to studies, archives and command lines, for 20 s of one processor; make fuzz takes as many as you like.
test-fuzz: install
	$(VENV)/bin/python -m pytest tests/fuzz --fuzz-cases 100

fuzz: install
	PYTHONPATH=tests $(VENV)/bin/python -m fuzz $(CASES:%=--cases %) $(SEED:%=--seed %) $(CASE:%=--case %)

# Builds the site, and runs the commands of the first tuning.
test-first-tuning: install
	$(VENV)/bin/python -m pytest tests/docs -k "test_site or first-tuning"

# What torch.compile traces takes longest: that is in the lane of compiled models.
test-unit: install
	$(VENV)/bin/python $(PYTEST) -m "not compiles" tests/unit

# Commands wait for processes to start and to end: two at a time leave a quarter of two cores idle.
THREE = $(PYTEST) --numprocesses 3

# One tuning of each backend, one training, one study that two workers share; and commands that train nothing. The longest
# files come first, as they are named, though they have the fewest tests.
test-smoke: install
	$(VENV)/bin/python $(THREE) --no-loadscope-reorder tests/integration/smoke tests/commands "tests/workers/test_workers.py::$(SHARED)[sqlite]"
SHARED = test_workers_share_the_trials_and_agree_and_a_later_one_has_the_answer_at_once

test-plain test-train test-ranks test-ortmodule test-card: install
	$(VENV)/bin/python $(THREE) tests/integration/$(@:test-%=%)
	$(RECORD)

test-compiled: install
	$(VENV)/bin/python $(PYTEST) tests/integration/compiled
	$(VENV)/bin/python $(PYTEST) --dist load -m compiles tests/unit/torch_backend
	$(RECORD)

# Several workers on one study, over SQLite and a real PostgreSQL, which the tests start and break.
test-workers: install system
	$(VENV)/bin/python $(PYTEST) tests/workers
	$(RECORD)

# The wheel, installed for this Python or another one: FOR_PYTHON=python3.13.
test-wheel: install
	$(VENV)/bin/python -m pytest tests/release $(FOR_PYTHON:%=--for-python %)
	$(RECORD)

# The page of a study in Debian's Chromium.
test-browser: install system
	$(VENV)/bin/python -m pytest tests/browser
	$(RECORD)

# Every command on the pages of the documentation is run, or read.
test-pages: install
	$(VENV)/bin/python -m pytest tests/docs
	$(RECORD)

# Skips everything where there is no card; the environment needs the CUDA build of torch.
test-gpu: install
	$(VENV)/bin/python -m pytest tests/gpu

# What depends on PyTorch, on one that ORTModule 1.19.2 runs on as it is. The package is not installed there: a training script
# that imports nothing of it must do without.
UNIT_ON_TORCH26 = applying arguments callers checkpoints fakes module_state rewriting script_state
ON_TORCH26 = compat exports golden_plans gradients startup user_scripts
test-torch26: install-torch26
	PYTHONPATH=$(CURDIR) $(TORCH26_VENV)/bin/python $(THREE) tests/integration/smoke/test_ortmodule.py \
		$(ON_TORCH26:%=tests/integration/ortmodule/test_%.py) $(UNIT_ON_TORCH26:%=tests/unit/torch_backend/test_%.py)
	$(RECORD)

$(TORCH26_VENV)/.installed:
	$(PYTHON) -m venv $(TORCH26_VENV)
	$(TORCH26_VENV)/bin/python -m pip install --quiet --upgrade pip
	sed -e 's/^torch==.*/torch==2.6.0/' -e 's/^sympy==.*/sympy==1.13.1/' constraints.txt > $(TORCH26_VENV)/constraints.txt
	$(TORCH26_VENV)/bin/python -m pip install $(QUICKLY) --constraint $(TORCH26_VENV)/constraints.txt ".[ortmodule-cpu,studies,report]" --group test
	$(TORCH26_VENV)/bin/python -m pip uninstall --quiet --yes autorecompute
	PYTHONPATH=$(CURDIR) $(TORCH26_VENV)/bin/python -m autorecompute doctor --fix
	touch $@

# The torch backend on the newest torch, and the plans of every study there beside those of this environment's torch.
test-newest-torch: install $(NEWEST_VENV)/.installed
	PYTHONPATH=$(CURDIR) $(NEWEST_VENV)/bin/python $(PYTEST) -p no:cacheprovider tests/unit/torch_backend
	$(VENV)/bin/python benchmarks/torch_versions.py $(VENV)/bin/python $(NEWEST_VENV)/bin/python
	$(RECORD)

$(NEWEST_VENV)/.installed:
	$(PYTHON) -m venv $(NEWEST_VENV)
	$(NEWEST_VENV)/bin/python -m pip install --quiet --upgrade pip
	sed -e 's/^torch==.*/torch==$(NEWEST_TORCH)/' -e '/^\(nvidia-[^m]\|triton\|sympy\|setuptools\)/d' constraints.txt > $(NEWEST_VENV)/constraints.txt
	$(NEWEST_VENV)/bin/python -m pip install $(QUICKLY) --constraint $(NEWEST_VENV)/constraints.txt torch ".[studies,report]" --group test
	$(NEWEST_VENV)/bin/python -m pip uninstall --quiet --yes autorecompute
	touch $@

# What each ORT says of its plans, live. The extensions of 1.17 and 1.18 compile against torch 2.4 at most, and their modules
# against NumPy 1. Transformers 5 needs a later torch.
test-ort-versions: $(ORT_VERSIONS:%=test-ort-%)
	$(RECORD)

# Make would remove them as mere steps on the way, and install everything again the next time.
.PRECIOUS: $(ORT_VENVS)/%/.installed

test-ort-%: $(ORT_VENVS)/%/.installed
	PYTHONPATH=$(CURDIR) $(ORT_VENVS)/$*/bin/python -m pytest -p no:cacheprovider tests/integration/ortmodule/test_plans.py

$(ORT_VENVS)/%/.installed:
	$(PYTHON) -m venv $(ORT_VENVS)/$*
	$(ORT_VENVS)/$*/bin/python -m pip install --quiet --upgrade pip
	sed -e '/^onnxruntime/d' -e '/^nvidia/d' -e '/^triton/d' -e '/^transformers/d' -e '/^tokenizers/d' \
		-e '/^huggingface_hub/d' -e 's/^torch==.*/torch==2.4.1/' -e 's/^numpy==.*/numpy==1.26.4/' \
		-e 's/^sympy==.*/sympy==1.13.1/' constraints.txt > $(ORT_VENVS)/$*/constraints.txt
	$(ORT_VENVS)/$*/bin/python -m pip install $(QUICKLY) --constraint $(ORT_VENVS)/$*/constraints.txt \
		onnxruntime-training-cpu==$* torch numpy "onnx>=1.16,<1.17" setuptools "transformers>=4.48,<5" \
		matplotlib nvidia-ml-py optuna psutil rich sympy pytest
	PYTHONPATH=$(CURDIR) $(ORT_VENVS)/$*/bin/python -m autorecompute doctor --fix
	touch $@

golden-plans: install
	$(VENV)/bin/python $(PYTEST) tests/integration/ortmodule/test_golden_plans.py --every-study --record-golden

golden-plans-check: install
	$(VENV)/bin/python $(PYTEST) tests/integration/ortmodule/test_golden_plans.py --every-study

bench-all: install
	$(VENV)/bin/python benchmarks/sitting.py

bench: install
	$(VENV)/bin/python studies/bert_mlm/benchmark.py

bench-noise: install
	$(VENV)/bin/python benchmarks/noise.py

bench-load: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/load.py

bench-hooks: install
	$(VENV)/bin/python benchmarks/hooks.py

bench-search: install
	$(VENV)/bin/python benchmarks/replay/bench.py

bench-time: install
	PYTHONPATH=benchmarks/replay OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/time_to_answer.py

bench-live: install
	$(VENV)/bin/python benchmarks/replay/live.py bert_mlm

record-tables: install
	$(VENV)/bin/python benchmarks/replay/record.py
	$(VENV)/bin/python benchmarks/replay/tables.py bert_mlm gpt2_clm vit_images bloom_clm deberta_mlm

record-torch-tables: install
	$(VENV)/bin/python benchmarks/replay/record_torch.py

bench-anchors: install
	$(VENV)/bin/python benchmarks/anchors.py $(if $(ORTMODULE),--ortmodule)

bench-by-hand: install
	$(VENV)/bin/python benchmarks/by_hand.py

bench-lengths: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/lengths.py

bench-vocabulary-head: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/vocabulary_head.py

bench-peers: install
	$(VENV)/bin/python benchmarks/peers.py

bench-card: install
	$(VENV)/bin/python benchmarks/card_tuning.py

card-sitting:
	PYTHONPATH=$(CURDIR) $(firstword $(wildcard $(VENV)/bin/python) python3) benchmarks/card_sitting.py $(CHECK)

bench-virtual-card: install
	PYTHONPATH=tests $(VENV)/bin/python benchmarks/virtual_tuning.py $(if $(MODEL),"$(MODEL)")

bench-compiled: install
	$(VENV)/bin/python benchmarks/compiled.py $(STUDY) $(if $(LAYERS),--layers $(LAYERS))

bench-outside-loss: install
	$(VENV)/bin/python benchmarks/outside_loss.py

bench-torch-overheads: install
	$(VENV)/bin/python benchmarks/torch_overheads.py

bench-torch-versions: install
	$(VENV)/bin/python benchmarks/torch_versions.py $(PYTHONS)

bench-droppable: install
	$(VENV)/bin/python benchmarks/droppable.py

bench-harmless: install
	PYTHONPATH=tests $(VENV)/bin/python benchmarks/harmless.py
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/harmless_plans.py

bench-own-cost: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/own_cost.py

bench-own-cost-ranks: install
	for way in DDP FSDP2; do for model in GPT-2 Llama; do \
		OMP_NUM_THREADS=1 $(VENV)/bin/python -m torch.distributed.run --standalone --nproc-per-node 2 benchmarks/own_cost_ranks.py $$model $$way || exit; \
	done; done

bench-forecast: install
	$(VENV)/bin/python benchmarks/forecast.py

bench-forecast-models: install
	$(VENV)/bin/python benchmarks/forecast_models.py

bench-forecast-torch: install
	$(VENV)/bin/python benchmarks/forecast.py --torch

bench-fake: install
	PYTHONPATH=tests $(VENV)/bin/python benchmarks/fake.py

bench-fake-ranks: install
	$(VENV)/bin/python benchmarks/fake_ranks.py

bench-estimators: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python benchmarks/estimators.py

bench-reuse: install
	$(VENV)/bin/python benchmarks/reuse.py

bench-workers: install system
	PYTHONPATH=tests $(VENV)/bin/python benchmarks/shared_study.py

# The picture of optuna-dashboard in the documentation.
dashboard-picture: install system
	PYTHONPATH=tests $(VENV)/bin/python benchmarks/dashboard_picture.py docs/dashboard.png

# Of the terminal of a tuning, and of the memory of a step in the page of its study.
pictures: install system
	$(VENV)/bin/python benchmarks/pictures.py docs

clean:
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache
