"""What the user of a training reads when its search has ended."""

from autorecompute.plans import Config
from autorecompute.studies.records import RoundRecord
from autorecompute.tuning.explanations import summarize_search
from autorecompute.tuning.race import Finalist
from autorecompute.units import MIB
from unit.conftest import build_result, build_space, build_trial

SLOW_SECONDS, FAST_SECONDS = 0.5, 0.4
SPENT_STEPS, LOST_SECONDS = 40, 1.95


def raced(config, seconds, number):
    trial = build_trial(config, number=number, step_seconds=(seconds,) * 3)
    return Finalist(trial=trial, rounds=(RoundRecord(step_seconds=(seconds,) * 3),) * 3)


def sentence_of(first, winner):
    """The sentence of a training that began with one config and ended with another, which is a fifth faster."""
    began, won = raced(first, SLOW_SECONDS, 0), raced(winner, FAST_SECONDS, 1)
    speed = {"samples_per_second": 32 / FAST_SECONDS, "relative_throughput": None, "confirmed": False}
    return summarize_search(
        best=build_result(winner, of_best=speed).best,
        limit_bytes=900 * MIB,
        trials=[won.trial, began.trial],
        first=began.trial,
        standings=[won, began],
        refused=[],
        spent_steps=SPENT_STEPS,
        spent_seconds=SPENT_STEPS * SLOW_SECONDS + LOST_SECONDS,
    )


def test_where_nothing_was_measured_no_limit_is_blamed():
    nothing = {"best": None, "trials": [], "first": None, "standings": [], "refused": []}
    spent = {"limit_bytes": 900 * MIB, "spent_steps": 2, "spent_seconds": 1.0}
    summary = summarize_search(**nothing, **spent, notes=["The next start tries more"])
    assert summary == "keeping the current config: none was measured. The next start tries more"


def test_no_recompute_is_called_that_and_trials_are_earned_back_by_the_gain():
    """Nearly two seconds were lost in 40 steps, and each step since gains a tenth of one: 20 steps more."""
    recompute = Config.of(build_space().plans[:1])
    assert sentence_of(recompute, Config()).startswith("no recompute, peak 700 MiB of 900 MiB")
    assert "1.25x of no recompute (700 MiB), which it began with" in sentence_of(Config(), recompute)
    told = sentence_of(Config.of(build_space().plans[:1]), Config())
    assert told.endswith(f"The trials are earned back after {SPENT_STEPS + 20} steps")
