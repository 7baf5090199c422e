"""A trial takes as long as it takes to know."""

from dataclasses import replace

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.search import Proposal
from autorecompute.training_job import Device
from autorecompute.trials.job import Effort
from autorecompute.tuning import trial_runner
from autorecompute.tuning.ledger import Ledger
from autorecompute.tuning.trial_runner import Reference, TrialRunner
from autorecompute.units import GIB, MIB
from stand_ins.formula import FormulaBench
from unit.conftest import build_detection, build_measurement, build_space, build_trial

EFFORT = Effort(warmup=2, steps=4)
ROOM = 10_000 * MIB


@pytest.fixture(autouse=True)
def _swaps_take_no_time(monkeypatch):
    monkeypatch.setattr(trial_runner, "takes_turns", lambda bench: bench.detect().device.kind == "cpu")


CONFIGS = [Config.of([plan]) for plan in build_space().plans[:2]]


def make_machine(times, kind="cpu"):
    """A machine on which the first config's step takes so many times that of the second, which takes 10 % more."""
    device = Device(kind=kind, name="It", total_bytes=16 * GIB)
    bench, costs = FormulaBench(build_detection(device=device)), {CONFIGS[0]: 1.1 * times, CONFIGS[1]: 1.1}
    bench.seconds = lambda config, _batch: costs.get(config, 1.0)
    return bench


def try_first(machine, *, limit_bytes=ROOM, fits=True):
    """The first config's measurement, where the second fits, and what of it and of the reference was measured."""
    reference = Reference(machine, EFFORT, is_known_to_fail=False)
    reference.note(machine.measure(Config(), EFFORT))
    known = build_trial(CONFIGS[1], reference_seconds=1.0, step_seconds=(1.1,)) if fits else None
    machine.measured.clear()
    measurement = reference.measure_beside(CONFIGS[0], EFFORT, limit_bytes, [known] if known else [])
    own = [effort.steps for config, effort in machine.measured if config == CONFIGS[0]]
    return measurement, sum(own), len(machine.measured) - len(own)


@pytest.mark.parametrize(
    ("times", "limit_bytes", "fits", "steps"),
    [(1.1, ROOM, True, 1), (0.9, MIB, True, 1), (0.9, ROOM, True, EFFORT.steps), (1.1, ROOM, False, EFFORT.steps)],
    ids=["slower than the best", "over the limit", "faster", "nothing fits yet"],
)
def test_a_config_gets_as_many_steps_as_it_takes_to_know(times, limit_bytes, fits, steps):
    machine = make_machine(times)
    measured, own, beside = try_first(machine, limit_bytes=limit_bytes, fits=fits)
    assert (own, beside) == (steps, steps)
    assert measured.step_seconds == pytest.approx((1.1 * times,) * steps)


def test_steps_of_a_config_and_of_the_reference_follow_each_other_back_and_forth_where_both_are_timed_in_turns():
    """A config that is not timed in turns has all its steps in a row; one that runs out of memory is measured once."""
    machine = make_machine(0.9)
    try_first(machine)
    first, order = CONFIGS[0], [config for config, _ in machine.measured]
    assert order == [first, Config(), Config(), first, first, Config(), Config(), first]
    assert [effort.warmup for _, effort in machine.measured] == [1] + [0] * 7
    machine = make_machine(1.1, "cuda")
    try_first(machine)
    assert machine.measured == [(CONFIGS[0], EFFORT)]
    machine = make_machine(0.9)
    machine.broken[CONFIGS[0]] = build_measurement(Outcome.OOM)
    assert try_first(machine)[0].outcome is Outcome.OOM
    assert len(machine.measured) == 1


@pytest.mark.parametrize(("times", "least"), [(1.02, 2), (0.9, EFFORT.steps + 1)], ids=["a little slower", "faster"])
def test_an_uneasy_machine_takes_more_steps(times, least):
    machine = make_machine(times)
    calm = try_first(machine)[1]
    reference = Reference(machine, EFFORT, is_known_to_fail=False)
    reference.note(replace(machine.measure(Config(), EFFORT), step_seconds=(1.0, 1.2) * 4))
    known = build_trial(CONFIGS[1], reference_seconds=1.0, step_seconds=(1.1,))
    uneasy = reference.measure_beside(CONFIGS[0], EFFORT, ROOM, [known])
    assert calm < least <= len(uneasy.step_seconds)


class Promising:
    """Proposes a plan after the other, each of which should gain as much."""

    def __init__(self, plans, gain):
        self.left, self.gain = [Config(), *(Config.of([plan]) for plan in plans)], gain

    def propose(self, trials, _claimed):
        if len(trials) == len(self.left):
            return None
        gain = self.gain if trials else None
        return Proposal(config=self.left[len(trials)], reason="it may be the best", gain=gain)


@pytest.mark.parametrize(
    ("training_seconds", "gain", "trials"),
    [(3600.0, 0.01, 4), (60.0, 0.01, 1), (3600.0, 0.0001, 1), (3600.0, None, 4)],
    ids=["it pays", "a short training", "a small gain", "nobody can tell"],
)
def test_a_search_ends_where_the_training_gains_less_than_the_next_trial_takes(  # noqa: PLR0917  (a row of the table)
    make_tuning, make_timed_bench, clock, training_seconds, gain, trials
):
    tuning = make_tuning(make_timed_bench(), training_seconds=training_seconds, began_seconds=clock.now)
    tuning.context.detect()
    ledger = Ledger(tuning.context)
    ledger.begin()
    searcher = Promising(build_space().plans[:3], gain)
    end = TrialRunner(tuning.context, ledger).search(
        searcher, lambda trials: [trial.under(600 * MIB) for trial in trials], lambda _: None
    )
    told = [note for note in tuning.watcher.notes if note.startswith("stopping")]
    assert (end, len(ledger.trials)) == (SearchEnd.NOTHING_LEFT, trials)
    assert len(told) == (trials == 1)
    assert all(f"could gain {gain:.2%}" in note for note in told)
    ledger.close()
