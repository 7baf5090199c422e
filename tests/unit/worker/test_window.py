"""The steps in which one config is measured, on a meter and a clock that the test moves."""

import dataclasses

import pytest

from autorecompute.measurement import Outcome
from autorecompute.meters import Reading
from autorecompute.plans import Config
from autorecompute.worker import window
from autorecompute.worker.protocol import Order
from autorecompute.worker.window import Memories, Window
from stand_ins.live import Live


class Clock:
    """Time that passes when the test says so."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        """The time."""
        return self.now


class Device:
    """A meter whose device holds memory and works behind the process's back."""

    def __init__(self, clock):
        self.clock, self.pending_seconds = clock, 0.0
        self.held = self.peak_bytes = 0
        self.releases = 0

    def hold(self, number_of_bytes):
        """Allocates, or frees, up to so many bytes."""
        self.held = number_of_bytes
        self.peak_bytes = max(self.peak_bytes, number_of_bytes)

    def release(self):
        """Half of what is held turns out to be free."""
        self.releases += 1
        self.held //= 2

    def reset(self):
        """Forgets the peak."""
        self.peak_bytes = self.held

    def read(self):
        """The peak."""
        return Reading(peak_bytes=self.peak_bytes, allocated_bytes=self.held)

    def held_bytes(self):
        """What is held."""
        return self.held

    def synchronize(self):
        """Lets the device finish."""
        self.clock.now += self.pending_seconds
        self.pending_seconds = 0.0


@pytest.fixture
def clock(monkeypatch):
    """The clock that the window reads."""
    clock = Clock()
    monkeypatch.setattr(window, "time", clock)
    return clock


@pytest.fixture
def device(clock):
    """The device."""
    return Device(clock)


@pytest.fixture
def begin(device):
    """Begins a window."""
    return lambda warmup=2, steps=3, **options: Window(
        device, Order(config=Config(), warmup=warmup, steps=steps), **options
    )


def run(window, clock, count, *, seconds=1.0, **step):
    """Steps that take so long each."""
    for _ in range(count):
        clock.now += seconds
        window.end_step(**{"samples": 8, "loss": 1.0, **step})


def test_what_is_held_between_steps_is_told(begin, clock, device):
    """The memory that stays when the heap was trimmed, and the peak that the steps reach above it."""
    measured = begin(warmup=1, steps=1)
    device.hold(1000)
    run(measured, clock, 1)
    device.hold(900)
    run(measured, clock, 1)
    reading = measured.measurement(8)
    assert (reading.held_bytes, reading.peak_bytes) == (500, 900)


def test_only_timed_steps_count(begin, clock):
    """Warm-up steps are timed apart, and the window is complete with its last timed step and not before."""
    measured = begin(warmup=2, steps=3)
    run(measured, clock, 2, seconds=9)
    run(measured, clock, 2, seconds=0.5)
    assert not measured.is_complete
    run(measured, clock, 1, seconds=0.25)
    assert measured.is_complete
    result = measured.measurement(8)
    assert (result.step_seconds, result.warmup_seconds) == ((0.5, 0.5, 0.25), 18)
    assert (result.outcome, result.samples, result.batch, len(result.losses)) == (Outcome.OK, 8, 8, 3)


@pytest.mark.parametrize("warmup", [1, 3])
def test_one_step_more_is_observed_where_live_tensors_are_counted(begin, clock, device, warmup):
    """It is not timed, and the peak is what was held before it and the tensors in it, whatever the process reached."""
    live = Live(device)
    measured = begin(warmup=warmup, steps=2, live=live)
    run(measured, clock, warmup - 1)
    device.hold(1000)
    run(measured, clock, 1)
    device.hold(900)
    run(measured, clock, 1, seconds=5)
    run(measured, clock, 1)
    assert not measured.is_complete
    run(measured, clock, 1)
    result = measured.measurement(8)
    assert live.log == [("start", result.held_bytes), "stop"]
    assert (result.peak_bytes, result.allocated_bytes) == (result.held_bytes + 300, 300)
    assert result.step_seconds == (1, 1)
    assert result.warmup_seconds == warmup + 5


def test_what_the_process_holds_is_read_in_the_timed_steps(begin, clock, device):
    """The step that is observed holds what counting takes; what the tool has left is no part of it."""
    measured = begin(warmup=1, steps=2, live=Live(device), left_bytes=100)
    device.hold(1000)
    run(measured, clock, 1)
    device.hold(5000)
    device.hold(900)
    run(measured, clock, 1)
    device.hold(1900)
    device.hold(900)
    run(measured, clock, 2)
    result = measured.measurement(8)
    assert (result.held_bytes, result.peak_bytes, result.resident_bytes) == (500 - 100, 500 - 100 + 300, 1900 - 100)
    assert result.untold_bytes == 1800 - 700


def test_a_step_that_says_nothing_is_observed_again(begin, clock, device):
    """One of another batch is no step of the config: the next one is counted by itself."""
    live = Live(device)
    measured = begin(warmup=1, steps=1, live=live)
    run(measured, clock, 1)
    measured.discard_step()
    run(measured, clock, 2)
    assert [entry if entry == "stop" else entry[0] for entry in live.log] == ["start", "stop", "start", "stop"]
    assert measured.is_complete


def test_a_step_ends_when_the_device_has_done_its_work(begin, clock, device):
    """Work that the device still has to do belongs to the step that asked for it."""
    measured = begin(warmup=1, steps=1)
    run(measured, clock, 1)
    device.pending_seconds = 2
    run(measured, clock, 1, seconds=1)
    assert measured.measurement(8).step_seconds == (3,)


def test_the_peak_is_that_of_the_timed_steps(begin, clock, device):
    """A peak during the warm-up, such as the last config's, is forgotten."""
    measured = begin(warmup=2, steps=1)
    device.hold(1000)
    run(measured, clock, 2)
    device.hold(600)
    run(measured, clock, 1)
    device.hold(10)
    assert measured.measurement(8).peak_bytes == 600


@pytest.mark.parametrize("warmup", [1, 3])
def test_memory_is_released_twice_and_before_the_peak_is_reset(begin, clock, device, warmup):
    """What configs before have left is given back, and what the last step held after the first: none is in the peak."""
    measured = begin(warmup=warmup, steps=2)
    assert device.releases == 1
    device.hold(1000)
    run(measured, clock, warmup + 2)
    assert device.releases == 2
    assert measured.measurement(8).peak_bytes == 500


def test_a_step_in_turn_measures_time_alone(begin, clock, device):
    """Where a config's memory is known, its steps are timed from the first on, and the device is left as it is."""
    before = begin(warmup=1, steps=1)
    device.hold(800)
    run(before, clock, 2)
    known, releases = before.measurement(8), device.releases
    measured = begin(warmup=0, steps=1, known=known)
    assert measured.is_timing
    device.hold(5000)
    run(measured, clock, 1)
    again = measured.measurement(8)
    assert (again.peak_bytes, again.held_bytes, again.allocated_bytes) == (
        known.peak_bytes,
        known.held_bytes,
        known.allocated_bytes,
    )
    assert again.outcome is Outcome.OK
    assert device.releases == releases


def test_a_step_in_turn_of_an_unknown_config_warms_up(begin, clock):
    """Where nothing is known of it yet, it has a step before the timed one, and its peak is measured."""
    measured = begin(warmup=0, steps=1)
    assert not measured.is_timing
    run(measured, clock, 2)
    assert measured.is_complete


def test_the_longest_batch_decides_what_a_config_takes(make_measurement):
    """Of several measurements of one config at one batch the one with the largest peak is kept."""
    memories, order = Memories(), Order(config=Config(), warmup=0, steps=1)
    for peak_bytes in (500, 800, 600):
        memories.keep(Config(), make_measurement(peak_bytes=peak_bytes, batch=8))
    assert memories.find(order, 8).peak_bytes == 800
    assert memories.find(order, 16) is None
    assert memories.find(dataclasses.replace(order, warmup=1), 8) is None


def test_a_whole_life_keeps_its_peak(begin, clock, device):
    """A watched run is left alone: its peak is the highest since its birth, the warm-up included."""
    measured = begin(warmup=2, steps=1, whole_life=True)
    device.hold(1000)
    run(measured, clock, 1)
    device.hold(10)
    run(measured, clock, 2)
    assert (device.releases, measured.measurement(8).peak_bytes) == (0, 1000)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_told(begin, clock, loss):
    """One infinite loss among good ones makes the outcome, which names it; the figures are kept."""
    measured = begin(warmup=1, steps=3)
    run(measured, clock, 2)
    run(measured, clock, 1, loss=loss)
    run(measured, clock, 1)
    result = measured.measurement(8)
    assert (result.outcome, len(result.step_seconds)) == (Outcome.DIVERGED, 3)
    assert str(loss) in result.message


def test_a_loss_of_the_warm_up_is_not_judged(begin, clock):
    """A loss that starts infinite and settles during the warm-up is no divergence."""
    measured = begin(warmup=1, steps=1)
    run(measured, clock, 1, loss=float("nan"))
    run(measured, clock, 1)
    assert measured.measurement(8).outcome is Outcome.OK


def test_a_run_without_scalar_losses_is_measured(begin, clock):
    """Steps whose backward started from no scalar have no losses, and are no divergence."""
    measured = begin(warmup=1, steps=2)
    run(measured, clock, 3, loss=None)
    assert (measured.measurement(8).outcome, measured.measurement(8).losses) == (Outcome.OK, ())


def test_a_discarded_step_takes_its_time_with_it(begin, clock):
    """A step that says nothing about the config neither counts nor lengthens the next one."""
    measured = begin(warmup=1, steps=2)
    run(measured, clock, 2, seconds=1)
    clock.now += 7
    measured.discard_step()
    run(measured, clock, 1, seconds=1)
    assert measured.is_complete
    assert measured.measurement(8).step_seconds == (1, 1)


def test_samples_are_those_of_a_usual_step(begin, clock):
    """A first and a last step with fewer samples do not change what a step has."""
    measured = begin(warmup=1, steps=5)
    for samples in (8, 3, 8, 8, 8, 3):
        run(measured, clock, 1, samples=samples)
    assert measured.measurement(8).samples == 8


def test_ranks_end_a_window_at_the_same_step(begin, clock):
    """Where others train along, a discarded step is lost: the window ends after as many steps as was ordered."""
    measured = begin(warmup=2, steps=3, extends_itself=False)
    measured.discard_step()
    run(measured, clock, 2)
    clock.now += 9
    measured.discard_step()
    assert not measured.is_complete
    run(measured, clock, 1)
    assert measured.is_complete
    assert measured.measurement(8).step_seconds == (1, 1)


def test_a_window_of_lost_steps_measured_nothing(begin, clock):
    """A rank whose batches were all wrong says so, rather than a figure of nothing."""
    measured = begin(warmup=1, steps=2, extends_itself=False)
    run(measured, clock, 1)
    for _ in range(2):
        measured.discard_step()
    assert measured.is_complete
    assert measured.measurement(8).outcome is Outcome.WRONG_BATCH


class Crowd:
    """Processors that work half of the time for the process, and a third of it for others."""

    def __init__(self, clock):
        self.clock = clock

    def own_seconds(self):
        """What the process had."""
        return self.clock.now / 2

    def others_share(self):
        """What others had."""
        return 1 / 3


def test_processor_time_is_that_of_the_timed_steps(begin, clock):
    """Each timed step has its own, warm-up and discarded steps have none, and what others had goes along."""
    measured = begin(warmup=1, steps=2, processors=Crowd(clock))
    run(measured, clock, 1, seconds=9)
    run(measured, clock, 1, seconds=2)
    clock.now += 7
    measured.discard_step()
    run(measured, clock, 1, seconds=4)
    result = measured.measurement(8)
    assert (result.cpu_seconds, result.others_share) == ((1, 2), 1 / 3)
    assert result.is_disturbed


def test_a_compilation_starts_the_window_over(begin, clock):
    """All steps before it are left out, be they timed or not, and what it took is told beside the warm-up."""
    measured = begin(warmup=2, steps=3)
    run(measured, clock, 4)
    clock.now += 20
    measured.start_over(15.0)
    run(measured, clock, 2, seconds=9)
    run(measured, clock, 3, seconds=0.5)
    result = measured.measurement(8)
    assert result.step_seconds == (0.5, 0.5, 0.5)
    assert (result.warmup_seconds, result.compile_seconds, measured.restarts) == (2 + 2 + 20 + 18, 15, 1)


def test_a_compilation_under_observation_stops_the_count(begin, clock, device):
    """Live tensors are counted again, after another warm-up."""
    live = Live(device)
    measured = begin(warmup=1, steps=1, live=live)
    run(measured, clock, 1)
    measured.start_over(1.0)
    run(measured, clock, 3)
    assert live.log.count("stop") == 2
    assert measured.is_complete


def test_ranks_that_train_together_end_together_whatever_is_compiled(begin, clock):
    """A rank that began again would keep the others waiting: the step is left out alone."""
    measured = begin(warmup=1, steps=2, extends_itself=False)
    run(measured, clock, 1)
    measured.start_over(1.0)
    run(measured, clock, 1)
    assert measured.is_complete
    assert len(measured.measurement(8).step_seconds) == 1
