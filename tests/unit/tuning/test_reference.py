"""What throughput is relative to, on a machine whose pace changes."""

import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.trials.job import Effort
from autorecompute.tuning.trial_runner import FASTEST_PLAUSIBLE, LONGEST_INTERVAL, SLOWEST_PLAUSIBLE, Reference
from stand_ins.formula import FormulaBench


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
