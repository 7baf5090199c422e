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

EFFORT = Effort(warmup=2, steps=4)
ROOM = 10_000 * MIB


@pytest.fixture(autouse=True)
def _swaps_take_no_time(monkeypatch):
    monkeypatch.setattr(trial_runner, "takes_turns", lambda bench: bench.detect().device.kind == "cpu")


@pytest.fixture
def configs(make_space):
    return [Config.of([plan]) for plan in make_space().plans[:2]]


@pytest.fixture
def make_machine(make_bench, make_detection, configs):
    """A machine on which the first config's step takes so many times that of the second, which takes 10 % more."""

    def make(times, kind="cpu"):
        device = Device(kind=kind, name="It", total_bytes=16 * GIB)
        bench, costs = make_bench(make_detection(device=device)), {configs[0]: 1.1 * times, configs[1]: 1.1}
        bench.seconds = lambda config, _batch: costs.get(config, 1.0)
        return bench

    return make


def try_first(machine, configs, make_trial, *, limit_bytes=ROOM, fits=True):
    """The first config's measurement, where the second fits, and what of it and of the reference was measured."""
    reference = Reference(machine, EFFORT, is_known_to_fail=False)
    reference.note(machine.measure(Config(), EFFORT))
    known = make_trial(configs[1], reference_seconds=1.0, step_seconds=(1.1,)) if fits else None
    machine.measured.clear()
    measurement = reference.measure_beside(configs[0], EFFORT, limit_bytes, [known] if known else [])
    own = [effort.steps for config, effort in machine.measured if config == configs[0]]
    return measurement, sum(own), len(machine.measured) - len(own)


@pytest.mark.parametrize(
    ("times", "limit_bytes", "fits", "steps"),
    [(1.1, ROOM, True, 1), (0.9, MIB, True, 1), (0.9, ROOM, True, EFFORT.steps), (1.1, ROOM, False, EFFORT.steps)],
    ids=["slower than the best", "over the limit", "faster", "nothing fits yet"],
)
def test_a_config_gets_as_many_steps_as_it_takes_to_know(  # noqa: PLR0917  (a row of the table)
    make_machine, configs, make_trial, times, limit_bytes, fits, steps
):
    machine = make_machine(times)
    measured, own, beside = try_first(machine, configs, make_trial, limit_bytes=limit_bytes, fits=fits)
    assert (own, beside) == (steps, steps)
    assert measured.step_seconds == pytest.approx((1.1 * times,) * steps)


def test_steps_of_a_config_and_of_the_reference_follow_each_other_back_and_forth_where_both_are_timed_in_turns(
    make_machine, configs, make_trial, make_measurement
):
    """A config that is not timed in turns has all its steps in a row; one that runs out of memory is measured once."""
    machine = make_machine(0.9)
    try_first(machine, configs, make_trial)
    first, order = configs[0], [config for config, _ in machine.measured]
    assert order == [first, Config(), Config(), first, first, Config(), Config(), first]
    assert [effort.warmup for _, effort in machine.measured] == [1] + [0] * 7
    machine = make_machine(1.1, "cuda")
    try_first(machine, configs, make_trial)
    assert machine.measured == [(configs[0], EFFORT)]
    machine = make_machine(0.9)
    machine.broken[configs[0]] = make_measurement(Outcome.OOM)
    assert try_first(machine, configs, make_trial)[0].outcome is Outcome.OOM
    assert len(machine.measured) == 1


@pytest.mark.parametrize(("times", "least"), [(1.02, 2), (0.9, EFFORT.steps + 1)], ids=["a little slower", "faster"])
def test_an_uneasy_machine_takes_more_steps(make_machine, configs, make_trial, times, least):
    machine = make_machine(times)
    calm = try_first(machine, configs, make_trial)[1]
    reference = Reference(machine, EFFORT, is_known_to_fail=False)
    reference.note(replace(machine.measure(Config(), EFFORT), step_seconds=(1.0, 1.2) * 4))
    known = make_trial(configs[1], reference_seconds=1.0, step_seconds=(1.1,))
    uneasy = reference.measure_beside(configs[0], EFFORT, ROOM, [known])
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
    make_tuning, make_timed_bench, clock, make_space, training_seconds, gain, trials
):
    tuning = make_tuning(make_timed_bench(), training_seconds=training_seconds, began_seconds=clock.now)
    tuning.context.detect()
    ledger = Ledger(tuning.context)
    ledger.begin()
    searcher = Promising(make_space().plans[:3], gain)
    end = TrialRunner(tuning.context, ledger).search(searcher, lambda _: 600 * MIB, lambda _: None)
    told = [note for note in tuning.watcher.notes if note.startswith("stopping")]
    assert (end, len(ledger.trials)) == (SearchEnd.NOTHING_LEFT, trials)
    assert len(told) == (trials == 1)
    assert all(f"could gain {gain:.2%}" in note for note in told)
    ledger.close()
