"""The Python of the documentation: all of it compiles, and what shows the search in Optuna runs."""

import ast

import optuna
import pytest

import tables
from autorecompute.plans import Config
from autorecompute.search import ModelSearcher, RecomputeSampler
from replay import Replay

NEAR = 0.01
"""A throughput within this share of the best is as good."""


def test_python_compiles(snippet):
    """No block of Python has a slip of the pen in it."""
    ast.parse(snippet.text, filename=snippet.place)


@pytest.fixture(scope="module")
def bench():
    """A recorded model, as a bench."""
    return Replay(tables.load(tables.TABLES / "bert_mlm.json.gz"))


def test_the_sampler_finds_what_fits(blocks, bench):
    """The block that shows the search in a study of Optuna finds a config that holds the limit, on a recorded model."""
    (snippet,) = (block for block in blocks if block.language == "python" and "RecomputeSampler(" in block.text)
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
    assert best.ratio <= bench.best_ratio(limit_bytes) * (1 + NEAR)
