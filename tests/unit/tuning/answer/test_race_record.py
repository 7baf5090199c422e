import json
from dataclasses import replace

import pytest

from autorecompute.figures import RaceEnd, Ranking
from autorecompute.studies.records import RACE_FILE
from autorecompute.tuning.explanations import explain_interruption
from autorecompute.tuning.race import LOOKS, ROUND_EFFORT, Race, fitting_finalists, keep_race, read_race
from autorecompute.units import MIB
from stand_ins.formula import stop
from stand_ins.sharing import measured


def rounds_run(tuning):
    """The finalists' rounds; a reference is measured as long beside trials, too."""
    return [config for config, effort in tuning.bench.measured if effort == ROUND_EFFORT and not config.is_none]


def kept(tuning):
    return json.loads((tuning.folder.path / RACE_FILE).read_text())


@pytest.fixture
def confirming(make_tuning):
    """A session that was stopped while the race's winner was confirmed."""
    return stop(make_tuning(), impatient_at=0)


def test_a_race_is_not_run_again_where_its_winner_was_not_confirmed_any_more(confirming, make_tuning):
    race = kept(confirming)
    tuning = make_tuning()
    best = tuning.run().best
    assert (tuning.tried, rounds_run(tuning)) == ([], [])
    assert best.description == race["standings"][0]["description"]
    assert (best.ranking.end, best.ranking.rounds) == (race["ranking"]["end"], race["ranking"]["rounds"])
    assert kept(tuning) == race
    assert any("in an earlier session" in note for note in tuning.watcher.notes)


def test_a_race_goes_on_after_the_rounds_that_were_run(confirming, tune_in, make_root):
    finalists_count = len(rounds_run(confirming)) // LOOKS[0]
    before_race = len(confirming.bench.measured) - LOOKS[0] * (finalists_count + 1)
    root = make_root()
    stop(tune_in(root), interrupt_at=before_race + 2 * (finalists_count + 1) + 1)
    tuning = tune_in(root)
    best = tuning.run().best
    assert len(rounds_run(tuning)) == finalists_count
    assert best.ranking.rounds == len(kept(tuning)["standings"][0]["rounds"]) == LOOKS[0]
    assert kept(tuning)["standings"] == kept(confirming)["standings"]


def test_what_was_measured_since_is_raced(make_tuning):
    stop(make_tuning(max_trials=8), impatient_at=0)
    tuning = make_tuning()
    tuning.run()
    assert rounds_run(tuning)


def test_who_came_second_is_not_raced_again(confirming, make_tuning):
    winner, second, *_ = (entry["trial"] for entry in kept(confirming)["standings"])
    config_of = {trial.number: trial.config for trial in measured(confirming)}
    rejecting, last = (make_tuning() for _ in range(2))
    rejecting.bench.life_bytes[config_of[winner]] = 300 * MIB
    stop(rejecting, impatient_at=1)
    best = last.run().best
    assert rounds_run(last) == []
    assert (best.config, best.ranking) == (config_of[second], None)


def test_what_fits_best_so_far_is_who_won_the_race(confirming):
    trials = measured(confirming)
    fastest, other = fitting_finalists(trials)[:2]
    assert f"not confirmed: {kept(confirming)['standings'][0]['description']}." in explain_interruption(
        confirming.folder
    )
    ranking = Ranking(end=RaceEnd.RANKED, rounds=3, confidence=0.99)
    keep_race(confirming.folder, Race(standings=(other, fastest), ranking=ranking), len(trials))
    assert f"not confirmed: {other.trial.description}." in explain_interruption(confirming.folder)
    keep_race(confirming.folder, Race(standings=(other, fastest), ranking=ranking), len(trials) - 1)
    assert f"not confirmed: {fastest.trial.description}." in explain_interruption(confirming.folder)


def test_who_was_over_the_limit_is_known_with_its_rounds(confirming):
    trials = measured(confirming)
    raced = read_race(confirming.folder, trials)
    winner, *others = raced.standings
    keep_race(confirming.folder, replace(raced, standings=(winner,), over_limit=tuple(others)), len(trials))
    assert others
    assert read_race(confirming.folder, trials).over_limit == tuple(others)
