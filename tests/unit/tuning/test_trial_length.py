"""A trial takes as long as it takes to know, and what its throughput is relative to where the pace changes."""

from dataclasses import replace

import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.result import SearchEnd
from autorecompute.search import Proposal
from autorecompute.training_job import Device
from autorecompute.trials.job import Effort
from autorecompute.tuning import trial_runner
from autorecompute.tuning.ledger import Ledger
from autorecompute.tuning.trial_runner import (
    FASTEST_PLAUSIBLE,
    LONGEST_INTERVAL,
    SLOWEST_PLAUSIBLE,
    Reference,
    TrialRunner,
)
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


@pytest.fixture
def machine():
    """Steps without recompute take the seconds of the moment: at first one."""
    return FormulaBench(step_seconds=1.0, sample_seconds=0.0)


@pytest.fixture
def reference(machine):
    return Reference(machine, Effort(warmup=1, steps=1), is_known_to_fail=False)


def seconds(reference):
    """Its median step before the next trial; ``None`` where there is none."""
    reference.measure_if_due()
    latest = reference.beside(Measurement(outcome=Outcome.OOM))
    return latest.median_step_seconds if latest is not None else None


def test_a_steady_machine_is_asked_ever_more_rarely_until_its_pace_shifts(machine, reference):
    for _ in range(4):
        reference.measure_if_due()
    early = len(machine.measured)
    for _ in range(5 * LONGEST_INTERVAL):
        assert seconds(reference) == 1
    assert early >= 2
    assert 5 <= len(machine.measured) - early <= 8
    machine.step_seconds = 2.0
    while seconds(reference) == 1.0:
        pass
    before = len(machine.measured)
    reference.measure_if_due()
    assert len(machine.measured) == before + 1


def test_an_unsteady_machine_is_asked_before_every_trial(machine, reference):
    for machine.step_seconds in (1.0, 1.5) * 3:
        assert seconds(reference) == machine.step_seconds
    assert len(machine.measured) == 6


@pytest.mark.parametrize(
    ("step_seconds", "asks"),
    [((1 / (0.9 * SLOWEST_PLAUSIBLE),), 1), ((1 / (1.1 * FASTEST_PLAUSIBLE),), 1), ((1.0,), 0), ((1.3,), 0), ((), 0)],
)
def test_a_config_that_looks_impossible_and_no_other_asks_again(
    machine, reference, make_measurement, step_seconds, asks
):
    """A step faster than without recompute, or slower than two forwards, means that the machine changed."""
    for _ in range(40):
        reference.measure_if_due()
    before, machine.step_seconds = len(machine.measured), 1.7
    config = make_measurement(Outcome.OK if step_seconds else Outcome.OOM, step_seconds=step_seconds)
    assert reference.beside(config).median_step_seconds == (1.7 if asks else 1.0)
    assert len(machine.measured) == before + asks


def test_a_first_trial_without_recompute_is_the_first_reference(machine, reference, make_measurement):
    reference.note(make_measurement(step_seconds=(0.9,)))
    assert seconds(reference) == 0.9
    assert len(machine.measured) == 0


def test_a_reference_that_runs_out_of_memory_is_not_tried_again_and_one_that_is_known_to_fail_never(
    machine, reference, make_measurement
):
    machine.broken[Config()] = make_measurement(Outcome.OOM)
    assert [seconds(reference) for _ in range(20)] == [None] * 20
    assert len(machine.measured) == 1
    machine.measured.clear()
    assert seconds(Reference(machine, Effort(), is_known_to_fail=True)) is None
    assert len(machine.measured) == 0


def test_a_reference_that_crashed_once_is_tried_again(machine, reference, make_measurement):
    reference.measure_if_due()
    machine.broken[Config()], machine.step_seconds = make_measurement(Outcome.CRASH), 2.0
    for _ in range(LONGEST_INTERVAL):
        reference.measure_if_due()
    machine.broken.clear()
    assert [seconds(reference) for _ in range(LONGEST_INTERVAL)][-1] == 2.0


def test_where_others_take_the_processors_processor_time_is_the_pace(machine, reference, make_measurement):
    machine.others, machine.pace = lambda _: 0.6, (1.0, 3.0, 1.5, 2.0).__getitem__
    for _ in range(4):
        reference.measure_if_due()
    config = make_measurement(step_seconds=(9.0,), cpu_seconds=(1.25,), others_share=0.0)
    assert len(machine.measured) == 3
    assert reference.beside(config).median_cpu_seconds == 1.0
    assert len(machine.measured) == 3
