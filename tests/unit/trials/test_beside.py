import dataclasses
import socket
import types
from multiprocessing.connection import Connection

import pytest

from autorecompute.errors import ScriptError
from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.trials import Job, beside
from autorecompute.trials.beside import TrainingBench, TrainingEndedError
from autorecompute.trials.job import Effort
from autorecompute.waiting import OutOfTime
from autorecompute.worker.protocol import Beat, Check, Ended, Failed, KeepConfig, Order, decode, encode

CONFIG = Config.parse(["blocks.*/gelu:drop"])
OTHER = Config.parse(["blocks.*/softmax:drop"])
EFFORT = Effort(warmup=1, steps=4)
AGREES = GradientCheck(agrees=True, worst=0.0, steps=2)
MEASURED = Measurement(
    outcome=Outcome.OK, peak_bytes=100, step_seconds=(0.1,) * 4, warmup_seconds=0.2, samples=8, batch=8
)


class Line:
    """The training's end of the line."""

    def __init__(self, script, detection, longest=None):
        theirs, ours = socket.socketpair()
        self._end = Connection(ours.detach())
        self.bench = TrainingBench(Job(script=script, longest=longest), script.parent, theirs, 100)
        self.say(detection)

    def say(self, *messages):
        for message in messages:
            self._end.send_bytes(encode(message))

    @property
    def heard(self):
        """What the training was told since it was asked last."""
        found = []
        while self._end.poll(0):
            found.append(decode(self._end.recv_bytes()))
        return found

    def close(self):
        self._end.close()
        self.bench.hang_up()


@pytest.fixture
def line(make_detection, tmp_path):
    script = tmp_path / "train.py"
    script.touch()
    line = Line(script, make_detection())
    yield line
    line.close()


def test_a_config_is_compared_once_before_it_is_measured_and_stays_on_for_a_reason_that_is_said(line):
    line.say(AGREES, MEASURED, MEASURED, MEASURED)
    for config in (CONFIG, CONFIG, Config()):
        assert line.bench.measure(config, EFFORT).outcome is Outcome.OK
    assert [type(message) for message in line.heard] == [Check, Order, Order, Order]
    line.bench.keep_config(CONFIG, "the best")
    assert line.heard == [KeepConfig(config=CONFIG, message="the best")]


@pytest.mark.parametrize(
    ("check", "outcome", "word"),
    [
        (GradientCheck(agrees=False, worst=0.5, parameter="w", steps=2), Outcome.WRONG_GRADIENT, "w is off by 5.0e-01"),
        (GradientCheck(agrees=False, worst=0.0, steps=0, message="key error"), Outcome.SCRIPT_ERROR, "key error"),
    ],
)
def test_a_config_that_disagrees_is_never_ordered(line, check, outcome, word):
    line.say(check)
    for _ in range(2):
        measurement = line.bench.measure(CONFIG, EFFORT)
        assert measurement.outcome is outcome
        assert word in measurement.message
    assert line.heard == [Check(config=CONFIG)]
    assert line.bench.spent_steps == 1


@pytest.mark.parametrize(
    ("second", "passed", "seconds"), [(10, 0, 1.2), (12, 2, 1.4)], ids=["none between", "two between"]
)
def test_steps_are_spent_as_they_are_used(line, monkeypatch, second, passed, seconds):
    """A comparison, the warm-up, a step that counts live tensors on a CPU, the timed ones, and those between trials."""
    monkeypatch.setattr(beside, "time", types.SimpleNamespace(monotonic=lambda: 7.0))  # comparing takes no time
    line.say(AGREES, Beat(step=6), MEASURED, Beat(step=second), MEASURED)
    line.bench.measure(CONFIG, EFFORT)
    assert line.bench.spent_steps == 1 + 1 + 1 + 4
    line.bench.measure(CONFIG, Effort(warmup=0, steps=4))
    assert line.bench.spent_steps == 7 + 4 + passed
    assert line.bench.left_steps == 100 - line.bench.spent_steps
    assert line.bench.spent_seconds == pytest.approx(seconds)


def test_the_steps_that_are_expected_bound_those_that_are_spent(line):
    """Of 360 steps eighteen are the search's: two trials."""
    line.say(AGREES, Beat(step=6, expected=360), MEASURED, AGREES, Beat(step=12, expected=360), MEASURED)
    line.bench.measure(CONFIG, EFFORT)
    line.bench.measure(OTHER, EFFORT)
    line.heard  # noqa: B018  (what came before)
    with pytest.raises(OutOfTime):
        line.bench.measure(Config.parse(["blocks.*:checkpoint"]), EFFORT)
    assert line.bench.left_steps == 360 * 0.05 - 14
    assert line.heard == []


@pytest.mark.parametrize(
    ("expected", "share", "is_live"), [(None, 1.0, False), (1000, 0.4, True)], ids=["all", "no more than a share"]
)
def test_steps_are_kept_back_for_the_race(line, expected, share, is_live):
    """Once two configs can be compared. What a scheduler lets expect is known after the first trial."""
    line.say(AGREES, Beat(step=6, expected=expected), MEASURED, AGREES, Beat(step=12, expected=expected), MEASURED)
    line.bench.keep_back(90, share, EFFORT)
    line.bench.measure(CONFIG, EFFORT)
    assert line.bench.is_live
    line.bench.measure(OTHER, EFFORT)
    assert line.bench.is_live is is_live
    line.bench.release()
    assert line.bench.is_live


def test_trials_are_short_where_few_steps_may_be_spent(line):
    """Of 300 steps fifteen are the search's: two trials with two timed steps, not one with four."""
    line.say(AGREES, Beat(step=6, expected=300), MEASURED, AGREES, Beat(step=10, expected=300), MEASURED)
    line.bench.keep_back(90, 0.4, EFFORT)
    line.bench.measure(CONFIG, EFFORT)
    assert line.bench.is_live
    line.bench.measure(OTHER, EFFORT)
    assert not line.bench.is_live
    assert [order.steps for order in line.heard if isinstance(order, Order)] == [4, 2]


def test_memory_that_ran_out_is_a_measurement_and_the_end(line):
    line.say(AGREES, Failed(outcome=Outcome.OOM, message="no memory"))
    assert line.bench.measure(CONFIG, EFFORT).outcome is Outcome.OOM
    assert not line.bench.is_live
    with pytest.raises(TrainingEndedError):
        line.bench.keep_config(None, "nothing")


@pytest.mark.parametrize("last", [Ended(steps=3), Failed(outcome=Outcome.SCRIPT_ERROR, message="broken"), None])
def test_a_training_that_ends_ends_the_search(line, last):
    line.bench.detect()
    if last is None:
        line.close()
    else:
        line.say(last)
    with pytest.raises(TrainingEndedError):
        line.bench.measure(CONFIG, EFFORT)


def test_memory_that_ran_out_beside_a_training_leaves_it_to_be_measured(line):
    line.say(AGREES, Measurement(outcome=Outcome.OOM, message="CUDA out of memory"), AGREES, MEASURED)
    assert line.bench.measure(CONFIG, EFFORT).outcome is Outcome.OOM
    assert line.bench.measure(OTHER, EFFORT).outcome is Outcome.OK


@pytest.fixture
def long_line(make_detection, tmp_path):
    """A line to a training whose longest sample has 400 tokens."""
    script = tmp_path / "train.py"
    script.touch()
    line = Line(script, make_detection(), longest=400)
    yield line
    line.close()


def test_steps_beside_a_training_are_spent_by_their_length(long_line):
    long_line.say(AGREES, Beat(step=3), MEASURED, AGREES, Beat(step=90), MEASURED, AGREES, MEASURED)
    long_line.bench.measure(CONFIG, EFFORT)
    assert long_line.bench.spent_steps == 1 + 6
    long_line.bench.measure(CONFIG, dataclasses.replace(EFFORT, length=100))
    assert long_line.bench.spent_steps == 7 + 6 / 4 + 0.5
    long_line.bench.measure(CONFIG, Effort(warmup=0, steps=2))  # still at that length
    assert long_line.bench.spent_steps == 7 + 8 / 4
    long_line.bench.set_aside = 0.4
    assert long_line.bench.left_steps == 60 - 9


def test_the_peak_beside_a_training_is_no_less_than_that_of_a_whole_step(long_line):
    """Nothing of the optimizer runs there."""
    held = dataclasses.replace(MEASURED, held_bytes=70)
    whole = [dataclasses.replace(AGREES, step_bytes=size) for size in (50, 20, 60)]
    long_line.say(AGREES, held, whole[0], held, whole[1], held, whole[2])
    assert long_line.bench.measure(CONFIG, EFFORT).peak_bytes == 70 + 50
    assert long_line.bench.measure(CONFIG, dataclasses.replace(EFFORT, length=100)).peak_bytes == 100
    assert long_line.bench.measure(Config(), EFFORT).peak_bytes == 70 + 60
    assert long_line.heard[-1] == Check(config=Config(), compares=False)


def test_a_length_that_the_model_does_not_take_is_an_error_with_its_reason(long_line):
    long_line.say(AGREES, Measurement(outcome=Outcome.SCRIPT_ERROR, message="IndexError: out of range"))
    with pytest.raises(ScriptError, match=r"a step of 400 tokens beside the training fails .*: IndexError"):
        long_line.bench.measure(CONFIG, EFFORT)


def test_a_shorter_batch_that_fails_is_measured_as_that(long_line):
    failed = Measurement(outcome=Outcome.DIVERGED, message="the loss is nan")
    long_line.say(AGREES, MEASURED, AGREES, failed)
    long_line.bench.measure(CONFIG, EFFORT)
    assert long_line.bench.measure(CONFIG, dataclasses.replace(EFFORT, length=100)) == failed


def test_a_shorter_batch_is_measured_where_no_step_of_the_longest_is_left(long_line):
    long_line.say(AGREES, MEASURED, AGREES, MEASURED, AGREES)
    long_line.bench.measure(CONFIG, EFFORT)
    long_line.bench.set_aside = 0.9
    with pytest.raises(OutOfTime):
        long_line.bench.measure(CONFIG, EFFORT)
    assert long_line.bench.measure(CONFIG, dataclasses.replace(EFFORT, length=100)).outcome is Outcome.OK
