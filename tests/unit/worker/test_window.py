import types

import pytest

from autorecompute.measurement import Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.worker.protocol import Order
from autorecompute.worker.window import Window
from stand_ins.live import Live

IDLE = types.SimpleNamespace(own_seconds=lambda: None, others_share=lambda: None)


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
        self.peak_bytes = self.held

    def read(self):
        return Measurement(outcome=Outcome.LOST, peak_bytes=self.peak_bytes, allocated_bytes=self.held)

    def held_bytes(self):
        return self.held

    def mark(self):
        return self.clock.now + self.pending_seconds

    def seconds_between(self, first, last):
        self.clock.now = max(self.clock.now, last)
        self.pending_seconds = 0.0
        return last - first


@pytest.fixture
def clock():
    return types.SimpleNamespace(now=0.0)


@pytest.fixture
def device(clock):
    return Device(clock)


@pytest.fixture
def begin(device):
    return lambda warmup=2, steps=3, **options: Window(
        device, Order(config=Config(), warmup=warmup, steps=steps), **{"processors": IDLE, **options}
    )


def run(window, clock, count, *, seconds=1.0, **step):
    for _ in range(count):
        clock.now += seconds
        window.end_step(**{"samples": 8, "loss": 1.0, **step})


def test_only_timed_steps_count_and_a_compilation_starts_the_window_over(begin, clock):
    measured = begin(warmup=2, steps=3)
    run(measured, clock, 2, seconds=9)
    run(measured, clock, 2, seconds=0.5)
    assert not measured.is_complete
    run(measured, clock, 1, seconds=0.25)
    assert measured.is_complete
    result = measured.measurement(8)
    assert (result.step_seconds, result.warmup_seconds) == ((0.5, 0.5, 0.25), 18)
    assert (result.outcome, result.samples, result.batch, len(result.losses)) == (Outcome.OK, 8, 8, 3)
    measured = begin(warmup=2, steps=3)
    run(measured, clock, 4)
    clock.now += 20
    measured.start_over(15.0)
    run(measured, clock, 2, seconds=9)
    run(measured, clock, 3, seconds=0.5)
    result = measured.measurement(8)
    assert result.step_seconds == (0.5, 0.5, 0.5)
    assert (result.warmup_seconds, result.compile_seconds, measured.restarts) == (2 + 2 + 20 + 18, 15, 1)


@pytest.mark.parametrize("warmup", [1, 3])
def test_one_step_more_is_observed_where_live_tensors_are_counted(begin, clock, device, warmup):
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


@pytest.mark.parametrize(
    ("spoil", "steps"),
    [(Window.discard_step, 2), (lambda window: window.start_over(1.0), 3)],
    ids=["a discarded batch", "a compilation"],
)
def test_a_step_that_says_nothing_is_observed_again(begin, clock, device, spoil, steps):
    live = Live(device)
    measured = begin(warmup=1, steps=1, live=live)
    run(measured, clock, 1)
    spoil(measured)
    run(measured, clock, steps)
    assert [entry if entry == "stop" else entry[0] for entry in live.log] == ["start", "stop", "start", "stop"]
    assert measured.is_complete


def test_a_step_ends_when_the_device_has_done_its_work_and_nobody_waits_for_it_between_timed_ones(begin, clock, device):
    measured = begin(warmup=1, steps=2)
    run(measured, clock, 1)
    for seconds in (3, 4):  # the device is that much behind, as the process prepares the next step meanwhile
        device.pending_seconds = seconds
        run(measured, clock, 1, seconds=1)
    assert device.pending_seconds == 4
    assert clock.now == 3
    assert measured.measurement(8).step_seconds == (4, 2)
    assert clock.now == 7
    measured = begin(warmup=1, steps=1)
    run(measured, clock, 1)
    device.pending_seconds = 2
    run(measured, clock, 1, seconds=1)
    assert measured.measurement(8).step_seconds == (3,)


@pytest.mark.parametrize("warmup", [1, 3])
def test_what_was_left_is_released_twice_and_the_peak_is_that_of_the_timed_steps(begin, clock, device, warmup):
    """What configs before have left is given back, and after the first step what the last one held."""
    measured = begin(warmup=warmup, steps=1)
    assert device.releases == 1
    device.hold(1000)
    run(measured, clock, warmup)
    device.hold(900)
    run(measured, clock, 1)
    device.hold(10)
    reading = measured.measurement(8)
    assert (device.releases, reading.held_bytes, reading.peak_bytes) == (2, 500, 900)


def test_a_step_in_turn_of_a_known_config_measures_time_alone_and_of_an_unknown_one_warms_up(begin, clock, device):
    before = begin(warmup=1, steps=1)
    device.hold(800)
    run(before, clock, 2)
    known, releases = before.measurement(8), device.releases
    measured = begin(warmup=0, steps=1, known=known)
    assert measured.is_timing
    device.hold(5000)
    run(measured, clock, 1)
    again = measured.measurement(8)
    for figure in ("peak_bytes", "held_bytes", "allocated_bytes", "outcome"):
        assert getattr(again, figure) == getattr(known, figure)
    assert device.releases == releases
    measured = begin(warmup=0, steps=1)
    assert not measured.is_timing
    run(measured, clock, 2)
    assert measured.is_complete


def test_a_whole_life_keeps_its_peak(begin, clock, device):
    """A watched run is left alone, the warm-up included."""
    measured = begin(warmup=2, steps=1, whole_life=True)
    device.hold(1000)
    run(measured, clock, 1)
    device.hold(10)
    run(measured, clock, 2)
    assert (device.releases, measured.measurement(8).peak_bytes) == (0, 1000)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf")])
def test_a_loss_that_is_no_number_is_told_beside_the_figures(begin, clock, loss):
    """One of the warm-up is not judged: it may settle."""
    measured = begin(warmup=1, steps=2)
    run(measured, clock, 1, loss=loss)
    run(measured, clock, 1)
    assert measured.measurement(8).outcome is Outcome.OK
    run(measured, clock, 1, loss=loss)
    result = measured.measurement(8)
    assert (result.outcome, len(result.step_seconds)) == (Outcome.DIVERGED, 2)
    assert str(loss) in result.message


def test_samples_are_those_of_a_usual_step_with_scalar_losses_or_without(begin, clock):
    measured = begin(warmup=1, steps=2)
    run(measured, clock, 3, loss=None)
    assert (measured.measurement(8).outcome, measured.measurement(8).losses) == (Outcome.OK, ())
    measured = begin(warmup=1, steps=5)
    for samples in (8, 3, 8, 8, 8, 3):
        run(measured, clock, 1, samples=samples)
    assert measured.measurement(8).samples == 8


def test_processor_time_is_that_of_the_timed_steps(begin, clock):
    """Half of the processors is the process's own, and a third that of others."""
    crowd = types.SimpleNamespace(own_seconds=lambda: clock.now / 2, others_share=lambda: 1 / 3)
    measured = begin(warmup=1, steps=2, processors=crowd)
    run(measured, clock, 1, seconds=9)
    run(measured, clock, 1, seconds=2)
    clock.now += 7
    measured.discard_step()
    run(measured, clock, 1, seconds=4)
    result = measured.measurement(8)
    assert (result.step_seconds, result.cpu_seconds, result.others_share) == ((2, 4), (1, 2), 1 / 3)
    assert result.is_disturbed


@pytest.mark.parametrize(
    ("lose", "outcome", "seconds"),
    [
        (["discard", "run", "run", "discard", "run"], Outcome.OK, (1, 1)),
        (["run", "run", "compile", "run", "run"], Outcome.OK, (1, 1)),
        (["run", "run", "discard", "discard", "discard"], Outcome.WRONG_BATCH, ()),
    ],
    ids=["batches", "a compilation", "all"],
)
def test_ranks_that_train_together_end_a_window_at_the_same_step_whatever_they_lose(
    begin, clock, lose, outcome, seconds
):
    """A rank that began again would keep the others waiting."""
    measured = begin(warmup=2, steps=3, extends_itself=False)
    for step in lose:
        assert not measured.is_complete
        if step == "run":
            run(measured, clock, 1)
        else:
            clock.now += 9
            measured.discard_step() if step == "discard" else measured.start_over(1.0)
    assert measured.is_complete
    assert (measured.measurement(8).outcome, measured.measurement(8).step_seconds) == (outcome, seconds)
