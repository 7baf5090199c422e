"""How the answers of whole tunings are judged."""

from __future__ import annotations

import pytest

from autorecompute.plans import Config
from autorecompute.units import MIB
from live import judge
from replay import Replay


@pytest.fixture
def replay(make_table, make_machine):
    """A table in which each config has peaks 2 KiB apart."""
    machine = make_machine(rounds=2)
    rows = [{**row, "peak_bytes": row["peak_bytes"] + 1024 * (-1) ** row["round"]} for row in machine.rows()]
    return Replay(make_table(machine, rows))


def answer(config):
    """What a tuning prints that came to this config."""
    best = {"config": config.texts, "description": "these", "peak_bytes": 400 * MIB}
    return {"best": best, "trials": 9, "wall_seconds": 60.0}


@pytest.mark.parametrize(("over_bytes", "verdict"), [(0, "met"), (1024, "met"), (MIB, "truly over the limit")])
def test_what_truly_exceeds_the_limit_is_not_met(replay, over_bytes, verdict):
    """However fast: only what is over by less than a recorded peak is off may be taken for one that fits."""
    limit_bytes = round(replay.truths[Config()].peak_bytes) - over_bytes
    *_, lost, told = judge(replay, limit_bytes, answer(Config()))
    assert told == verdict
    assert lost == ("-" if told != "met" else "0.0%")


def test_an_answer_that_loses_more_than_the_goal_misses_it(replay):
    """All plans on take far more time than what the limit asks for."""
    slow = max(replay.truths, key=lambda config: replay.truths[config].ratio)
    limit_bytes = round(replay.truths[Config()].peak_bytes)
    assert judge(replay, limit_bytes, answer(slow))[-1] == "missed"
