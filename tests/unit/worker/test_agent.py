"""The controller's hand inside a training script, on a script that the test plays."""

from __future__ import annotations

import contextlib

import pytest

from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.memory import StepProfile
from autorecompute.meters import Reading
from autorecompute.plans import Config
from autorecompute.worker import agent
from autorecompute.worker.agent import PATIENCE_SKIPS, PATIENCE_STEPS, STEPS_WITHOUT_SESSION, Abandon, Agent
from autorecompute.worker.protocol import Beat, Check, Failed, Order, Settings

CONFIG = Config.from_rows(["Gelu+:1:-1"])
FIRST, SECOND = Order(config=CONFIG, warmup=1, steps=2), Order(config=Config(), warmup=1, steps=3)
TARGET = 8
PROFILE = StepProfile(operations=(), tensors=(), backward=0, dims={})
PROFILING = Order(config=CONFIG, warmup=1, steps=1, profiles=True)


class Optimizer:
    """An optimizer, known by its identity alone."""


class Training:
    """A script, its training system, its memory and its controller, all under the test's hand."""

    def __init__(self, detection, target, orders):
        self.detection, self.orders = detection, list(orders)
        self.sent, self.happened = [], []
        self.held, self.warnings = 700, ()
        self.optimizers = [Optimizer() for _ in range(3)]
        self.has_open_forward = False
        self.agent = Agent(self, self, Settings(address="", target_batch=target))

    def begin(self):
        """The first forward, in which the session is created."""
        self.agent.on_forward(TARGET, self.check)
        return self.agent.on_session(lambda: self.detection)

    def step(self, *batches, loss=1.0, optimizers=1, skips=False):
        """Forwards, a backward and the steps of so many optimizers, or one GradScaler's refusal of each."""
        for batch in batches:
            self.agent.on_forward(batch, self.check)
        self.agent.on_loss(loss)
        for optimizer in self.optimizers[:optimizers]:
            (self.agent.on_skip if skips else self.agent.on_step)(optimizer)

    def steps(self, count, batch=TARGET, **options):
        """Steps of one forward each."""
        for _ in range(count):
            self.step(batch, **options)

    def send(self, message):
        """The channel: what the controller hears, its heartbeat aside."""
        if not isinstance(message, Beat):
            self.sent.append(message)

    def check(self, config):
        """The backend: gradients compared."""
        self.happened.append(("checked", config))
        return GradientCheck(agrees=True, worst=0.0, steps=3)

    def end_step(self):
        """The backend: what there is to warn of."""
        return self.warnings

    def receive_order(self):
        """The channel: what it orders next; a controller without orders is gone."""
        if not self.orders:
            raise SystemExit("the tuner is gone")
        return self.orders.pop(0)

    def switch(self, config, *, profiles=False):
        """The backend: another config from now on."""
        self.happened.append(config)
        self.profiles = profiles

    def take_profile(self):
        """The backend: what the last step was seen to do, if it was to be looked at."""
        assert self.profiles, "a session that was made without a profile has none"
        return PROFILE

    def release(self):
        """The meter: gives back what is free."""
        self.happened.append("release")
        self.held = 500

    def reset(self):
        """The meter: forgets the peak."""
        self.happened.append("reset")

    def held_bytes(self):
        """The meter: what is held."""
        return self.held

    def read(self):
        """The meter: the peak."""
        return Reading(peak_bytes=900)

    def observe(self):
        """The meter: notes that it was asked to look."""
        self.happened.append("observe")

    def outside_bytes(self):
        """The meter: what others hold on the device."""
        return 300

    def synchronize(self):
        """The meter: nothing to wait for."""


@pytest.fixture
def make_training(make_detection, monkeypatch):
    """Builds a training."""

    def make(target=TARGET, orders=(FIRST, SECOND)):
        training = Training(make_detection(batch=0), target, orders)
        monkeypatch.setattr(agent, "meter_for", lambda _: training)
        return training

    return make


def test_the_first_session_is_told_and_the_first_config_obeyed(make_training):
    """The controller hears the plans, the target batch and the memory held once what is free was given back."""
    training = make_training()
    assert training.begin() == CONFIG
    (told,) = training.sent
    assert (told.plans, told.batch, told.resting_bytes) == (training.detection.plans, TARGET, 500)


def test_the_first_window_of_a_process_warms_up_once_more(make_training):
    """The step that also builds the optimizer's state is none of the ordered ones."""
    training = make_training()
    training.begin()
    training.step()
    training.steps(2)
    assert len(training.sent) == 1
    training.steps(1)
    assert len(training.sent[1].step_seconds) == FIRST.steps


def test_configs_are_swapped_between_two_steps(make_training):
    """After a measurement the next order's config is switched on, then memory released, and measured in turn."""
    training = make_training()
    training.begin()
    training.step()
    training.happened.clear()
    training.steps(3)
    assert training.happened[-2:] == [SECOND.config, "release"]
    with pytest.raises(SystemExit):
        training.steps(4)
    assert len(training.sent[2].step_seconds) == SECOND.steps
    assert training.sent[2].outcome is Outcome.OK


def test_a_profile_comes_with_its_measurement_and_no_other(make_training):
    """An order that profiles has its window profiled; the next one is without again."""
    training = make_training(orders=(FIRST, PROFILING, SECOND))
    training.begin()
    training.steps(4)
    training.steps(2)
    with pytest.raises(SystemExit):
        training.steps(4)
    assert [measurement.profile for measurement in training.sent[1:]] == [None, PROFILE, None]


def test_a_profile_ordered_first_is_taken_from_a_session_made_for_it(make_training):
    """The session that exists when the first order comes cannot be profiled any more: another is made, and told of."""
    training = make_training(orders=(PROFILING, SECOND))
    training.begin()
    training.steps(3)
    assert len(training.sent) == 1
    training.steps(2)
    assert training.sent[1].profile == PROFILE
    assert len(training.sent[1].step_seconds) == PROFILING.steps


def test_accumulated_forwards_are_one_step(make_training):
    """A step over several forwards has all their samples, at the batch of one."""
    training = make_training()
    training.begin()
    training.step(TARGET, TARGET)
    for _ in range(3):
        training.step(TARGET, TARGET, TARGET)
    measured = training.sent[1]
    assert (measured.samples, measured.batch) == (3 * TARGET, TARGET)


def test_several_optimizers_of_one_forward_are_one_step(make_training):
    """A window of a script with three optimizers needs as many forwards as with one."""
    training = make_training()
    training.begin()
    training.step(optimizers=3)
    training.steps(2, optimizers=3)
    assert len(training.sent) == 1
    training.steps(1, optimizers=3)
    assert len(training.sent) == 2


def test_the_steps_of_a_script_are_counted_once(make_training):
    """What a script is said to have taken, when it ends too early, are its steps and not its optimizers'."""
    training = make_training()
    training.begin()
    training.step(optimizers=2)
    training.steps(2, optimizers=2)
    assert training.agent.steps == 3


def test_optimizers_that_take_turns_are_one_step(make_training):
    """Two optimizers, each with a forward of its own, end one step with the samples of both."""
    training = make_training()
    training.begin()
    first, second, _ = training.optimizers
    for _ in range(FIRST.warmup + FIRST.steps + 2):
        training.agent.on_step(first)
        training.agent.on_forward(TARGET, training.check)
        training.agent.on_step(second)
        training.agent.on_forward(TARGET, training.check)
    assert training.sent[1].samples == 2 * TARGET


def test_a_step_that_a_grad_scaler_skips_is_left_out(make_training):
    """A skipped step is neither timed nor counted, and its samples do not go to the next one."""
    training = make_training()
    training.begin()
    training.step(skips=True)
    training.steps(1)
    training.step(TARGET, skips=True)
    training.steps(1)
    assert len(training.sent) == 1
    training.steps(2)
    assert training.sent[1].samples == TARGET


def test_gradients_that_are_never_finite_end_the_trial(make_training):
    """A GradScaler that skips every step ends the trial as diverged, rather than keep it waiting."""
    training = make_training()
    training.begin()
    for _ in range(PATIENCE_SKIPS):
        training.step(TARGET, skips=True)
    with pytest.raises(Abandon):
        training.step(TARGET, skips=True)
    assert training.sent[1].outcome is Outcome.DIVERGED
    assert "GradScaler" in training.sent[1].message


def test_a_ragged_last_batch_is_left_out(make_training):
    """A smaller batch at the end of an epoch is neither timed nor counted, however many epochs there are."""
    training = make_training(orders=(Order(config=CONFIG, warmup=1, steps=2 * PATIENCE_STEPS),))
    training.begin()
    training.step()
    training.steps(1)
    for _ in range(2 * PATIENCE_STEPS - 1):
        training.step(TARGET)
        training.step(3)
    assert len(training.sent) == 1
    with pytest.raises(SystemExit):
        training.step(TARGET)
    measured = training.sent[1]
    assert (measured.outcome, measured.samples, measured.batch) == (Outcome.OK, TARGET, TARGET)


def test_a_step_with_one_wrong_forward_is_left_out(make_training):
    """Accumulation over a right and a wrong batch is no step at the target batch."""
    training = make_training()
    training.begin()
    training.step()
    training.step(TARGET, 3)
    training.steps(2)
    assert len(training.sent) == 1


def test_a_batch_that_stays_wrong_is_told_with_the_ways_out(make_training):
    """After some patience the script is left, and the sentence names both batches and how to give the right one."""
    training = make_training()
    training.begin()
    training.step()
    training.steps(PATIENCE_STEPS, batch=3)
    assert len(training.sent) == 1
    with pytest.raises(Abandon):
        training.step(3)
    told = training.sent[1]
    assert (type(told), told.outcome) == (Failed, Outcome.WRONG_BATCH)
    for words in ("batch of 3, not 8", "{batch}", "--batch-flag", "AUTORECOMPUTE_BATCH_SIZE"):
        assert words in told.message


def test_without_a_target_the_first_batch_is_the_target(make_training):
    """A tuning at the script's own batch measures at the first one it sees."""
    training = make_training(target=None)
    training.begin()
    assert training.sent[0].batch == TARGET


def test_a_script_without_ortmodule_is_left_early(make_training):
    """Optimizer steps without any session end the trial with a sentence on how to wrap the model."""
    training = make_training()
    for _ in range(STEPS_WITHOUT_SESSION - 1):
        training.agent.on_step(training.optimizers[0])
    assert training.sent == []
    with pytest.raises(Abandon):
        training.agent.on_step(training.optimizers[0])
    assert training.sent[0].outcome is Outcome.SCRIPT_ERROR
    assert "ORTModule(model)" in training.sent[0].message


def test_a_script_cannot_swallow_its_end(make_training):
    """A script that catches every exception of its own is left all the same."""
    training = make_training()

    def train():
        for _ in range(STEPS_WITHOUT_SESSION):
            with contextlib.suppress(Exception):
                training.agent.on_step(training.optimizers[0])

    with pytest.raises(Abandon):
        train()


def test_gradients_are_checked_on_the_next_batch(make_training):
    """A check waits for a batch, is answered before the forward on it, and leaves what is trained as it was."""
    training = make_training(orders=(FIRST, Check(config=CONFIG), Check(config=Config()), SECOND))
    training.begin()
    training.step()
    training.steps(3)
    assert len(training.sent) == 2
    training.happened.clear()
    training.agent.on_forward(TARGET, training.check)
    assert [type(message) for message in training.sent[2:]] == [GradientCheck, GradientCheck]
    assert training.happened == [("checked", CONFIG), ("checked", Config()), SECOND.config, "release"]
    training.agent.on_step(training.optimizers[0])
    with pytest.raises(SystemExit):
        training.steps(3)
    assert len(training.sent[4].step_seconds) == SECOND.steps


def test_each_step_is_a_sign_of_life(make_training):
    """The controller hears of every step, timed or not, so that it knows a slow script from a hanging one."""
    training = make_training()
    beats = []
    training.send = lambda message: beats.append(message) if isinstance(message, Beat) else None
    training.begin()
    training.step()
    training.step(3)
    training.steps(1)
    assert [beat.step for beat in beats] == [1, 2, 3]


def test_warnings_reach_the_controller(make_training):
    """What the backend has to say about the script's steps comes with the measurement."""
    training = make_training()
    training.warnings = ("train.py:7 calls the model without a backward",)
    training.begin()
    training.step()
    training.steps(3)
    assert training.sent[1].warnings == training.warnings


def test_ranks_leave_their_windows_together(make_training):
    """A rank whose batch was wrong in a timed step reports at the same step as those whose batches were right."""
    training = make_training()
    training.agent = Agent(training, training, Settings(address="", target_batch=TARGET), is_alone=False)
    training.begin()
    training.step()
    training.step(TARGET)
    training.step(3)
    training.step(TARGET)
    assert len(training.sent[1].step_seconds) == FIRST.steps - 1


class Loss:
    """A tensor that would have to come from the device."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return self.value


def test_losses_are_fetched_in_timed_steps_only(make_training):
    """Each timed step has its loss; a warm-up step does not make the process wait for one."""
    losses = [Loss(value) for value in (4.0, 3.0, 2.0, 1.0)]
    training = make_training()
    training.begin()
    training.step(loss=losses[0])
    for loss in losses[1:]:
        training.step(TARGET, loss=loss)
    assert training.sent[1].losses == (2, 1)
    assert [loss.reads for loss in losses] == [0, 0, 1, 1]


def test_a_watched_run_is_left_alone(make_training, monkeypatch):
    """A run that is to be watched detects nothing, tells nothing and trains with what it has."""
    training = make_training()
    training.agent = Agent(training, training, Settings(address="", watch=FIRST))
    monkeypatch.setattr(agent, "meter_for", lambda _: pytest.fail("a watched run is not touched at its session"))
    training.agent.on_forward(TARGET, training.check)
    assert training.agent.on_session(lambda: pytest.fail("detecting costs memory")).is_none
    assert training.sent == []
