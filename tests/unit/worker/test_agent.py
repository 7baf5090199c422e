import contextlib
import os
from dataclasses import replace

import pytest

from autorecompute.measurement import GradientCheck, Measurement, Outcome
from autorecompute.plans import Config
from autorecompute.training_job import Detection
from autorecompute.worker.agent import Abandon, Agent
from autorecompute.worker.protocol import Check, Order, Settings
from autorecompute.worker.script import BACKWARDS_WITHOUT_OPTIMIZER, STEPS_WITHOUT_SESSION
from stand_ins.live import Live
from stand_ins.training import ADVICE, CONFIG, FIRST, PROFILE, PROFILING, SECOND, TARGET


def test_what_the_detection_left_is_no_part_of_a_trial(make_training, make_detection):
    """A training without the tool does not hold that."""
    training = make_training()
    training.detection = make_detection(batch=0, left_bytes=120)
    training.live_meter = lambda: Live(training, 50)
    training.begin()
    training.steps(1 + 1 + 1 + FIRST.steps)
    told, measured = training.sent
    assert told.resting_bytes == 500 - 120
    assert (measured.held_bytes, measured.peak_bytes) == (500 - 120, 500 - 120 + 50)


def test_configs_are_swapped_between_two_steps(training):
    """The first window of a process warms up once more."""
    training.warnings = ("train.py:7 calls the model without a backward",)
    training.step()
    training.happened.clear()
    training.steps(2)
    assert len(training.sent) == 1
    training.steps(1)
    assert training.happened[-2:] == [SECOND.config, "release"]
    assert (len(training.sent[1].step_seconds), training.sent[1].warnings) == (FIRST.steps, training.warnings)
    with pytest.raises(SystemExit):
        training.steps(4)
    assert len(training.sent[2].step_seconds) == SECOND.steps
    assert training.sent[2].outcome is Outcome.OK


def test_the_longest_batch_decides_what_a_config_takes_in_turns(make_training):
    measure, turn = (Order(config=CONFIG, warmup=warmup, steps=1) for warmup in (1, 0))
    training = make_training(orders=(measure, measure, measure, turn), begins=True)
    for peak, steps in ((500, 3), (800, 2), (600, 2)):
        training.peak = peak
        training.steps(steps)
    with pytest.raises(SystemExit):
        training.step(TARGET)
    assert [measured.peak_bytes for measured in training.sent[1:]] == [500, 800, 600, 800]


def test_a_profile_ordered_first_is_taken_from_a_session_made_for_it(make_training):
    """The session that exists when the first order comes cannot be profiled any more."""
    training = make_training(orders=(PROFILING, SECOND), begins=True)
    training.steps(3)
    assert len(training.sent) == 1
    training.steps(2)
    assert training.sent[1].profile == PROFILE
    assert len(training.sent[1].step_seconds) == PROFILING.steps


@pytest.mark.parametrize(("then", "measured"), [(TARGET, TARGET), (None, 3)])
def test_an_order_may_change_the_batch_which_stays_until_another_changes_it_back(
    make_training, monkeypatch, then, measured
):
    """Steps at the batch before are left out."""
    small, other = (Order(config=CONFIG, warmup=1, steps=2, batch=batch) for batch in (3, then))
    training = make_training(orders=(small, other, small))
    training.give_loader(monkeypatch)
    training.begin()
    training.step()
    with pytest.raises(SystemExit):
        training.train(20)
    assert [(told.batch, told.samples) for told in training.sent[1:3]] == [(3, 3), (measured, measured)]


def test_a_batch_is_cut_from_the_scripts_own_where_nothing_draws_it_and_not_where_it_takes_its_own(make_training):
    """The target stays, rather than every step be missed."""
    training = make_training(orders=(Order(config=CONFIG, warmup=1, steps=2, batch=3), SECOND), begins=True)
    training.step()
    training.steps(3)
    assert training.sent[1].batch == TARGET
    training = make_training(orders=(FIRST, Order(config=CONFIG, warmup=1, steps=2, batch=3), SECOND), begins=True)
    given = []
    training.give_batch = lambda batch: given.append(batch) or True
    training.steps(4)
    assert given == [3]
    training.steps(1 + 1 + 2, batch=3)
    assert [told.batch for told in training.sent[1:]] == [TARGET, 3]


def test_a_smaller_batch_has_come_before_its_config_is_on(make_training, monkeypatch):
    """A larger one, drawn ahead, might not fit under it; and a larger batch finds the config that it fits under."""
    then = (Order(config=config, warmup=1, steps=1, batch=batch) for config, batch in ((Config(), 3), (CONFIG, TARGET)))
    training = make_training(orders=(FIRST, *then))
    training.give_loader(monkeypatch)
    trained = []

    def train():
        for _ in range(20):
            batch = training.loader.draw()
            trained.append(
                (next((one for one in reversed(training.happened) if isinstance(one, Config)), CONFIG), batch)
            )
            training.step(batch)

    training.begin()
    with pytest.raises(SystemExit):
        train()
    assert (Config(), TARGET) not in trained
    assert {(Config(), 3), (CONFIG, 3), (CONFIG, TARGET)} == set(trained)
    assert [told.batch for told in training.sent[1:]] == [TARGET, 3, TARGET]


def test_a_batch_that_nothing_here_draws_is_refused_and_the_target_stays(make_training, monkeypatch):
    """A sampler of the script's own may give the target by itself."""
    training = make_training(orders=(FIRST, Order(config=CONFIG, warmup=1, steps=2, batch=3), SECOND))
    training.give_loader(monkeypatch)
    monkeypatch.setattr(type(training.loader), "batch", None)
    training.begin()
    with pytest.raises(SystemExit):
        training.steps(20)
    assert [told.outcome for told in training.sent[1:]] == [Outcome.OK, Outcome.WRONG_BATCH, Outcome.OK]
    assert training.sent[-1].batch == TARGET


def test_a_script_that_trains_nothing_is_left_early_with_advice_and_cannot_swallow_its_end(make_training):
    training = make_training()

    def train():
        for _ in range(STEPS_WITHOUT_SESSION):
            assert training.sent == []
            with contextlib.suppress(Exception):
                training.agent.on_step(training.optimizers[0])

    with pytest.raises(Abandon):
        train()
    assert training.sent[0].outcome is Outcome.SCRIPT_ERROR
    assert ADVICE in training.sent[0].message


def test_gradients_are_checked_on_the_next_batch(make_training):
    training = make_training(
        orders=(FIRST, Check(config=CONFIG), Check(config=Config(), compares=False), SECOND), begins=True
    )
    training.step()
    training.steps(3)
    assert len(training.sent) == 2
    training.happened.clear()
    training.agent.on_forward(TARGET, training.check)
    assert [type(message) for message in training.sent[2:]] == [GradientCheck, GradientCheck]
    assert training.happened == [("checked", CONFIG), ("looked at", Config()), SECOND.config, "release"]
    training.agent.on_step(training.optimizers[0])
    with pytest.raises(SystemExit):
        training.steps(3)
    assert len(training.sent[4].step_seconds) == SECOND.steps


def test_ranks_leave_their_windows_together(make_training):
    """A rank whose batch was wrong reports at the same step as those whose batches were right."""
    training = make_training()
    training.agent = Agent(training, training, Settings(target_batch=TARGET), is_alone=False)
    training.begin()
    training.step()
    training.step(TARGET)
    training.step(3)
    training.step(TARGET)
    assert len(training.sent[1].step_seconds) == FIRST.steps - 1


def test_a_watched_run_is_left_alone(make_training):
    training = make_training()
    training.agent = Agent(training, training, Settings(watch=FIRST))
    training.agent.on_forward(TARGET, training.check)
    assert training.agent.on_session(lambda: pytest.fail("detecting costs memory")).is_none
    assert training.sent == []


@pytest.mark.parametrize("mixed", [(), (48, 16, 16, 48)])
def test_a_watched_run_trains_with_mixed_lengths_before_its_timed_steps(make_training, mixed):
    training, given = make_training(), []
    training.give_length = given.append
    watch = replace(FIRST, mixed=mixed, warmup=FIRST.warmup + len(mixed))
    training.agent = Agent(training, training, Settings(target_batch=TARGET, watch=watch, longest=64))
    training.begin()
    with contextlib.suppress(SystemExit):
        training.steps(20)
    assert given == [*mixed, *[64] * (len(given) - len(mixed))]
    assert len(given) > len(mixed) or not mixed
    measured = next(one for one in training.sent if isinstance(one, Measurement))
    assert len(measured.step_seconds) == FIRST.steps


@pytest.mark.parametrize("begins", [True, False])
def test_a_script_without_a_torch_optimizer_is_ended_in_a_sentence(make_training, begins):
    training = make_training()
    if begins:
        training.begin()
    with pytest.raises(Abandon):
        training.steps(BACKWARDS_WITHOUT_OPTIMIZER, optimizers=0)
    assert training.sent[-1].outcome is Outcome.SCRIPT_ERROR
    assert "No torch.optim optimizer" in training.sent[-1].message
    assert training.agent.advice == training.sent[-1].message


def test_a_script_may_accumulate_for_as_long_as_it_likes_and_is_told_of_processes_that_it_started(make_training):
    training = make_training()
    training.agent.on_optimizer()
    training.steps(10 * BACKWARDS_WITHOUT_OPTIMIZER, optimizers=0)
    assert training.sent == []
    assert training.agent.advice == ADVICE
    training = make_training()
    training.agent.has_children = lambda: True
    assert training.agent.advice.startswith(ADVICE)
    assert "--launcher" in training.agent.advice


@pytest.mark.parametrize("trained", [False, True])
def test_a_forked_process_that_trains_is_told_and_left(make_training, monkeypatch, trained):
    training = make_training()
    if trained:
        training.begin()
    monkeypatch.setattr(os, "getpid", lambda: 0)
    with pytest.raises(Abandon):
        training.step(TARGET) if trained else training.begin()
    assert "in a process that it starts itself" in training.sent[-1].message


def test_a_recompute_that_differs_is_a_wrong_gradient(training):
    training.step()
    training.wrong = "step 3: recompute of blocks.1 differs"
    training.steps(3)
    assert (training.sent[1].outcome, training.sent[1].message) == (Outcome.WRONG_GRADIENT, training.wrong)


def test_a_config_for_which_memory_runs_out_is_never_in_a_step_not_begun_with_and_given_up(make_training):
    training = make_training(orders=(FIRST, SECOND, FIRST), begins=True)
    training.lacks = {SECOND.config: "CUDA out of memory"}
    training.steps(3)
    training.happened.clear()
    with pytest.raises(SystemExit):
        training.steps(1 + FIRST.warmup + FIRST.steps)
    assert [told.outcome for told in training.sent[1:]] == [Outcome.OK, Outcome.OOM, Outcome.OK]
    assert training.sent[2].message == "CUDA out of memory"
    # It is taken back before any step: of batches that were drawn for another order, too.
    assert [one for one in training.happened if isinstance(one, Config)] == [SECOND.config, CONFIG, CONFIG]
    training = make_training(orders=(SECOND, FIRST))
    training.lacks = {SECOND.config: "CUDA out of memory"}
    assert training.begin() == CONFIG
    assert [type(one) for one in training.sent] == [Detection, Measurement]
    assert training.sent[1].outcome is Outcome.OOM
    training = make_training(begins=True)
    training.steps(1)
    training.lacks = {CONFIG: "CUDA out of memory"}
    training.steps(1)
    assert training.sent[-1].outcome is Outcome.OOM
    assert SECOND.config in training.happened


def test_a_step_beside_which_another_was_run_is_not_timed(training):
    training.steps(2)
    training.lacks = {CONFIG: ""}
    training.steps(1)
    training.lacks = {}
    training.steps(1)
    assert len(training.sent) == 1
    training.steps(1)
    assert len(training.sent[1].step_seconds) == FIRST.steps
