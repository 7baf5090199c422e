import ast
import os
import subprocess
import sys

import optuna

import tables
from autorecompute.plans import Config
from autorecompute.search import ModelSearcher, RecomputeSampler
from replay import Replay

from .conftest import BLOCKS, ROOT


def test_python_compiles(snippet):
    ast.parse(snippet.text, filename=snippet.place)


def test_the_example_of_a_card_on_paper_prints_what_its_comment_says():
    """In a fresh interpreter that has no torch loaded."""
    (example,) = (block.text for block in BLOCKS if block.page == "CONTRIBUTING.md" and block.language == "python")
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests")}
    printed = subprocess.check_output([sys.executable, "-c", example], text=True, env=environment)
    assert printed.strip() == example.rpartition("# ")[2].strip()


def test_the_sampler_finds_what_fits():
    bench = Replay(tables.load(tables.TABLES / "bert_mlm.json.gz"))
    (snippet,) = (block for block in BLOCKS if block.language == "python" and "RecomputeSampler(" in block.text)
    limit_bytes = bench.limit_bytes(0.4)

    def measure(config):
        truth = bench.truths[config]
        return truth.peak_bytes, 1 / truth.ratio

    names = {
        "RecomputeSampler": RecomputeSampler,
        "limit_bytes": limit_bytes,
        "measure": measure,
        "optuna": optuna,
        "searcher": ModelSearcher(
            bench.table.space, limit_bytes=limit_bytes, memory=bench.table.memory, dims=bench.table.dims
        ),
        "space": bench.table.space,
    }
    exec(compile(snippet.text, snippet.place, "exec"), names)  # noqa: S102  (our own page)
    best = bench.truths[names["sampler"].suggest(names["study"].best_trial)]
    assert best.peak_bytes <= limit_bytes < bench.truths[Config()].peak_bytes
    assert best.ratio <= bench.best_ratio(limit_bytes) * 1.01
