"""Parts of the replay benchmark: its tables, searches on them, and the goals that it judges."""

import pytest

import tables
from figures import as_columns, draw_limits, draw_searchers, judge_goals, merge
from live import judge
from play import BUDGET, Player
from replay import SHARES, Replay
from searchers import OURS, SEARCHERS


@pytest.mark.parametrize("name", tables.packed_names())
def test_a_table_is_read(name):
    table = tables.load(tables.TABLES / f"{name}{tables.SUFFIX}")
    assert len(table.recordings) > 100
    assert all(table.space.is_mix(config) or config in table.space.presets.values() for config in table.recordings)


@pytest.fixture(scope="module", params=["torch_vit", "vit_images"])
def replay(request):
    return Replay(tables.load(tables.TABLES / f"{request.param}{tables.SUFFIX}"))


@pytest.mark.parametrize("name", ["presets", "knapsack", "bisection"])
def test_other_searches_come_to_an_end(replay, name):
    limit_bytes = replay.limit_bytes(0.7)
    run = Player(replay, limit_bytes, 0).run(SEARCHERS[name](replay.table, limit_bytes, BUDGET, 0))
    assert run.ended <= BUDGET


def test_the_own_search_finds_the_best_and_its_goals_are_judged(replay, tmp_path):
    name, limit_bytes = replay.table.name, replay.limit_bytes(0.55)
    run = Player(replay, limit_bytes, 0).run(SEARCHERS[OURS](replay.table, limit_bytes, BUDGET, 0))
    assert run.trials <= 25
    assert not run.is_infeasible
    kept = merge(tmp_path / "results.jsonl", {name: {OURS: as_columns([run] * len(SHARES))}})
    assert draw_searchers(name, kept[name]).row_count == draw_limits(kept).row_count == 1
    assert len(judge_goals(kept)) == 5
    fitting = [config for config in replay.truths if replay.truly_fits(config, limit_bytes)]
    best = min(fitting, key=lambda config: replay.truths[config].ratio)
    found = {"config": best.texts, "description": "", "peak_bytes": limit_bytes}
    assert judge(replay, limit_bytes, {"best": found, "trials": 9, "wall_seconds": 60.0}, 42.0)[-1] == "met"


def test_what_was_kept_is_of_searchers_that_there_are():
    kept = merge(tables.TABLES / "results.jsonl", {})
    assert {name for searchers in kept.values() for name in searchers} <= SEARCHERS.keys()
    assert len(judge_goals(kept)) == 10
