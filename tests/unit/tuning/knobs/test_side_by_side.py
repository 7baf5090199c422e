"""Two setups in alternating processes."""

from __future__ import annotations

import random

import pytest

from autorecompute.errors import SetupError
from autorecompute.knobs import Setup
from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.tuning.knobs.side_by_side import ROUNDS, compare, gain_of, is_worth_it
from autorecompute.units import MIB

BASE = Setup(config=Config(), description="none")
OTHER = Setup(config=Config(), description="none", knobs={"KNOB": "1"})
LIMIT = 600 * MIB


@pytest.fixture
def run_with():
    """A machine on which the other setup is faster by a factor, at a pace that depends on when."""

    def run_with(speed, pace, *, fails=None, losses=lambda _: (7.5, 7.4)):
        order = []

        def run(setup):
            order.append(setup)
            if setup is fails:
                raise SetupError("nothing starts")
            seconds = pace(len(order) - 1) / (speed if setup is OTHER else 1)
            return Measurement(
                outcome=Outcome.OK,
                peak_bytes=500 * MIB,
                step_seconds=(seconds,) * 3,
                samples=32,
                batch=32,
                losses=losses(setup),
            )

        run.order = order
        return run

    return run_with


def test_the_order_is_mirrored(run_with):
    """Base, other, other, base: who comes first changes, so that a steady drift is in both alike."""
    run = run_with(0.9, lambda _: 1.0)
    compare(run, "knob", BASE, OTHER, LIMIT)
    assert run.order == [BASE, OTHER, OTHER, BASE]


def test_a_steady_drift_cancels(run_with):
    """On a machine that slows down by a tenth with each process, the gain is what it is."""
    comparison = compare(run_with(1.05, lambda number: 1.1**number), "knob", BASE, OTHER, LIMIT)
    assert gain_of(comparison.pairs).ratio == pytest.approx(1.05)


def test_a_gain_that_noise_may_have_made_is_measured_again(run_with):
    """What looks faster and is not sure takes more pairs, and is not kept where they do not make it sure."""
    chance = random.Random(3)
    run = run_with(1.04, lambda _: chance.uniform(0.7, 1.3))
    comparison = compare(run, "knob", BASE, OTHER, LIMIT)
    gain = gain_of(comparison.pairs)
    assert len(comparison.pairs) in {2, 4, 2 * ROUNDS}
    assert is_worth_it(comparison) == (gain.ratio > 1.02 and gain.low > 1)
    assert not is_worth_it(comparison)


def test_pairs_that_contradict_each_other_are_not_believed(run_with):
    """Where the machine slowed down in between, two pairs that look like no gain are not the last ones."""
    paces = iter([1.0, 1.0, 1.5, 1.0])
    run = run_with(1.2, lambda _: next(paces, 1.0))
    comparison = compare(run, "knob", BASE, OTHER, LIMIT)
    assert len(comparison.pairs) == 2 * ROUNDS
    assert gain_of(comparison.pairs).ratio == pytest.approx(1.2)


def test_noise_alone_is_hardly_ever_a_gain(run_with):
    """Setups that train alike are told apart in a few of a hundred comparisons at most, on a machine that swings."""
    found = 0
    for seed in range(100):
        chance = random.Random(seed)
        run = run_with(1.0, lambda _, chance=chance: chance.lognormvariate(0, 0.1))
        found += is_worth_it(compare(run, "knob", BASE, OTHER, LIMIT))
    assert found <= 5


def test_a_base_that_fails_says_nothing_of_the_other(run_with):
    """A machine that takes the base away leaves the question open."""
    run = run_with(1.0, lambda _: 1.0)

    def run_other_only(setup):
        return Measurement(outcome=Outcome.OOM, message="no memory") if setup is BASE else run(setup)

    assert compare(run_other_only, "knob", BASE, OTHER, LIMIT).outcome is Outcome.LOST


def test_an_installation_that_the_knob_breaks_is_an_outcome(run_with):
    """What would end a tuning ends one comparison."""
    comparison = compare(run_with(1.0, lambda _: 1.0, fails=OTHER), "knob", BASE, OTHER, LIMIT)
    assert (comparison.outcome, comparison.message) == (Outcome.SCRIPT_ERROR, "nothing starts")


@pytest.mark.parametrize(
    ("loss", "outcome"), [((7.45, 7.5), Outcome.OK), ((8.5, 8.5), Outcome.WRONG_LOSS), ((), Outcome.WRONG_LOSS)]
)
def test_losses_must_agree(run_with, loss, outcome):
    """Masks that are drawn in another order may move a loss a little; a loss that is off, or gone, is wrong."""
    run = run_with(1.5, lambda _: 1.0, losses=lambda setup: loss if setup is OTHER else (7.5, 7.4))
    assert compare(run, "knob", BASE, OTHER, LIMIT).outcome is outcome


def test_what_the_base_scatters_is_allowed(run_with):
    """Where a script's own runs differ, a knob may differ as much."""
    runs = iter([(7.0,), (7.3,), (7.6,), (8.0,)])
    run = run_with(1.0, lambda _: 1.0, losses=lambda _: next(runs))
    assert compare(run, "knob", BASE, OTHER, LIMIT).outcome is Outcome.OK


def test_without_losses_there_is_nothing_to_compare(run_with):
    """A script whose backward starts from no scalar is timed all the same."""
    run = run_with(1.5, lambda _: 1.0, losses=lambda _: ())
    assert is_worth_it(compare(run, "knob", BASE, OTHER, LIMIT))
