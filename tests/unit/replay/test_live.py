"""How the answers of whole tunings are judged."""

import pytest

from autorecompute.units import MIB
from live import judge
from replay import Replay


@pytest.fixture
def replay(make_table, make_machine):
    """A table in which each config has peaks 2 KiB apart."""
    machine = make_machine(rounds=2)
    rows = [{**row, "peak_bytes": row["peak_bytes"] + 1024 * (-1) ** row["round"]} for row in machine.rows()]
    return Replay(make_table(machine, rows))


def answer(config, peak_bytes):
    """What a tuning prints that came to this config, whose process held so much."""
    best = {"config": config.texts, "description": "these", "peak_bytes": peak_bytes}
    return {"best": best, "trials": 9, "wall_seconds": 60.0}


@pytest.mark.parametrize(("left_bytes", "verdict"), [(0, "met"), (1024 * MIB, "missed")])
def test_an_answer_is_held_against_what_would_fit_where_it_does(replay, left_bytes, verdict):
    """The config of least peak is the best where it just fits, and loses to others where its process left room."""
    least = min(replay.truths, key=lambda config: replay.truths[config].peak_bytes)
    process_bytes = round(replay.truths[least].peak_bytes) + 30 * MIB
    *_, lost, told = judge(replay, process_bytes + left_bytes, answer(least, process_bytes), 42.0)
    assert told == verdict
    assert (lost == "0.0%") == (verdict == "met")


def test_no_answer_is_told_as_that(replay):
    """Where nothing fits there is nothing to look up."""
    nothing = {"best": None, "trials": 4, "wall_seconds": 9.0}
    assert judge(replay, 400 * MIB, nothing, 42.0)[:4] == ["4", "42 s", "9 s", "nothing fits"]
