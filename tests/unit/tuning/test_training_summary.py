import pytest

from autorecompute.plans import Config
from autorecompute.result import Best
from autorecompute.tuning.answer.finalists import Finalist, Round
from autorecompute.tuning.training_summary import SearchSummary
from autorecompute.units import MIB

SLOW_SECONDS, FAST_SECONDS = 0.5, 0.4
SPENT_STEPS, LOST_SECONDS = 40, 1.95


@pytest.fixture
def sentence_of(make_trial, make_space):
    def raced(config, seconds, number):
        rounds = tuple(Round(step_seconds=(seconds,) * 3) for _ in range(3))
        return Finalist(trial=make_trial(config, number=number, step_seconds=(seconds,) * 3), rounds=rounds)

    def summarize(first, winner):
        began, won = raced(first, SLOW_SECONDS, 0), raced(winner, FAST_SECONDS, 1)
        best = Best(
            config=winner,
            description=make_space().describe(winner),
            batch=32,
            samples_per_second=32 / FAST_SECONDS,
            relative_throughput=None,
            peak_bytes=700 * MIB,
            limit_bytes=900 * MIB,
            confirmed=False,
        )
        return SearchSummary(
            best=best,
            limit_bytes=900 * MIB,
            trials=[won.trial, began.trial],
            first=began.trial,
            standings=[won, began],
            refused=[],
            spent_steps=SPENT_STEPS,
            spent_seconds=SPENT_STEPS * SLOW_SECONDS + LOST_SECONDS,
        ).sentence

    return summarize


def test_where_nothing_was_measured_no_limit_is_blamed():
    summary = SearchSummary(
        best=None,
        limit_bytes=900 * MIB,
        trials=[],
        first=None,
        standings=[],
        refused=[],
        spent_steps=2,
        spent_seconds=1.0,
        notes=["The next start tries more"],
    )
    assert summary.sentence == "what is on stays on: no config was measured. The next start tries more"


def test_no_recompute_is_called_that(sentence_of, make_space):
    recompute = Config.of(make_space().plans[:1])
    assert sentence_of(recompute, Config()).startswith("no recompute, peak 700 MiB of 900 MiB")
    assert "1.25x of no recompute (700 MiB), which it began with" in sentence_of(Config(), recompute)


def test_trials_are_earned_back_once_the_gain_has_made_up_for_them(sentence_of, make_space):
    told = sentence_of(Config.of(make_space().plans[:1]), Config())
    assert told.endswith(f"The trials are earned back after {SPENT_STEPS + 20} steps")
