import contextlib
import dataclasses
import math
import types

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autorecompute.measurement import Outcome
from autorecompute.worker.agent import PATIENCE, Abandon, LoaderOverride, _draw_batches
from autorecompute.worker.protocol import Beat, Failed, Order
from autorecompute.worker.script import COMPILATIONS, MISSED_STEPS, SKIPPED_STEPS
from stand_ins.training import CONFIG, FIRST, TARGET, Detached, Optimizer


def test_accumulated_forwards_are_one_step(training):
    training.step(TARGET, TARGET)
    for _ in range(3):
        training.step(TARGET, TARGET, TARGET)
    measured = training.sent[1]
    assert (measured.samples, measured.batch) == (3 * TARGET, TARGET)


def give_effective_batch(training, samples):
    training.agent.settings = dataclasses.replace(training.agent.settings, step_samples=samples)


def test_the_short_step_at_the_end_of_an_epoch_is_not_timed(training):
    give_effective_batch(training, 3 * TARGET)
    for passes in (2, 3, 1, 3):  # the first one had begun
        training.step(*[TARGET] * passes)
        assert len(training.sent) == 1
    training.step(*[TARGET] * 3)
    assert training.sent[1].samples == 3 * TARGET


@pytest.mark.parametrize(
    ("epoch", "words"),
    [
        (math.inf, f"of 1 x {TARGET} samples, and was told to make one of 4 x {TARGET}"),
        (3 * TARGET, f"--global-batch of {3 * TARGET} at most"),
    ],
    ids=["it makes other steps", "its epoch is shorter than a step"],
)
def test_a_script_that_does_not_accumulate_as_it_is_told_is_ended(training, monkeypatch, epoch, words):
    training.give_loader(monkeypatch)
    training.loader.samples = epoch
    training.begin()
    give_effective_batch(training, 4 * TARGET)
    for _ in range(MISSED_STEPS):
        training.step(TARGET)
    with pytest.raises(Abandon):
        training.step(TARGET)
    assert training.sent[-1].outcome is Outcome.WRONG_BATCH
    assert words in training.sent[-1].message


@pytest.mark.parametrize("drops", [False, True])
def test_a_loader_tells_the_samples_of_an_epoch(monkeypatch, drops):
    for owner, name in ((BatchSampler, "__init__"), (BatchSampler, "__iter__"), (_BaseDataLoaderIter, "__next__")):
        monkeypatch.setattr(owner, name, getattr(owner, name))  # it is put back as it was
    override = LoaderOverride(TARGET, "")
    assert override.samples == math.inf
    next(iter(DataLoader(range(2 * TARGET + 1), batch_size=TARGET, drop_last=drops)))
    assert override.samples == 2 * TARGET + 1


def test_ranks_share_the_effective_batch(training, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    give_effective_batch(training, 4 * TARGET)
    training.step(TARGET)
    for _ in range(3):
        training.step(TARGET, TARGET)
    assert training.sent[1].samples == 2 * TARGET


def test_several_optimizers_of_one_forward_are_one_step(training):
    training.step(optimizers=3)
    training.steps(2, optimizers=3)
    assert (len(training.sent), training.agent.steps) == (1, 3)
    training.steps(1, optimizers=3)
    assert (len(training.sent), training.agent.steps) == (2, 4)


def test_optimizers_that_take_turns_are_one_step(training):
    first, second, _ = training.optimizers
    for _ in range(FIRST.warmup + FIRST.steps + 2):
        training.agent.on_step(first)
        training.agent.on_forward(TARGET, training.check)
        training.agent.on_step(second)
        training.agent.on_forward(TARGET, training.check)
    assert training.sent[1].samples == 2 * TARGET


def test_an_optimizer_that_steps_in_the_backward_pass_is_refused(training):
    """The first of many such optimizers would end the step in the middle of that pass."""
    training.agent.on_forward(TARGET, training.check)
    weight = torch.nn.Parameter(torch.ones(2))
    weight.register_post_accumulate_grad_hook(lambda _: training.agent.on_step(training.optimizers[0]))
    with pytest.raises(Abandon, match="runs inside backward"):
        weight.sum().backward()
    assert training.sent[-1].outcome is Outcome.SCRIPT_ERROR


def test_a_step_that_a_grad_scaler_skips_is_left_out(training):
    training.step(skips=True)
    training.steps(1)
    training.step(TARGET, skips=True)
    training.steps(1)
    assert len(training.sent) == 1
    training.steps(2)
    assert training.sent[1].samples == TARGET


def test_gradients_that_are_never_finite_end_the_trial(training):
    for _ in range(SKIPPED_STEPS):
        training.step(TARGET, skips=True)
    with pytest.raises(Abandon):
        training.step(TARGET, skips=True)
    assert training.sent[1].outcome is Outcome.DIVERGED
    assert "GradScaler" in training.sent[1].message


def test_a_ragged_last_batch_is_left_out(make_training):
    training = make_training(orders=(Order(config=CONFIG, warmup=1, steps=2 * MISSED_STEPS),), begins=True)
    training.step()
    training.steps(1)
    for _ in range(2 * MISSED_STEPS - 1):
        training.step(TARGET)
        training.step(3)
    assert len(training.sent) == 1
    with pytest.raises(SystemExit):
        training.step(TARGET)
    measured = training.sent[1]
    assert (measured.outcome, measured.samples, measured.batch) == (Outcome.OK, TARGET, TARGET)


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (3, ("batch of 3, not 8", "{batch}", "--batch-flag", "AUTORECOMPUTE_BATCH_SIZE")),
        (TARGET, ("differ", "3 samples")),
    ],
)
def test_a_batch_that_stays_wrong_is_told_with_the_ways_out(make_training, first, words):
    training = make_training()
    training.begin(first)
    training.step()
    training.steps(MISSED_STEPS - (first != TARGET), batch=3)
    assert len(training.sent) == 1
    with pytest.raises(Abandon):
        training.step(3)
    told = training.sent[1]
    assert (type(told), told.outcome) == (Failed, Outcome.WRONG_BATCH)
    assert all(part in told.message for part in words)


def test_without_a_target_the_first_batch_is_the_target(make_training):
    training = make_training(target=None, begins=True)
    assert training.sent[0].batch == TARGET


def test_each_step_is_a_sign_of_life(make_training):
    """So a slow script is told from one that hangs."""
    training = make_training()
    beats = []
    training.send = lambda message: beats.append(message) if isinstance(message, Beat) else None
    training.begin()
    training.step()
    training.step(3)
    training.steps(1)
    assert [beat.step for beat in beats] == [1, 2, 3]


class Loss(Detached):
    """A tensor that would have to come from the device."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return self.value


def test_losses_are_fetched_in_timed_steps_only(make_training):
    losses = [Loss(value) for value in (4.0, 3.0, 2.0, 1.0)]
    training = make_training(begins=True)
    training.step(loss=losses[0])
    for loss in losses[1:]:
        training.step(TARGET, loss=loss)
    assert training.sent[1].losses == (2, 1)
    assert [loss.reads for loss in losses] == [0, 0, 1, 1]


def test_a_step_with_a_compilation_is_measured_again(training):
    training.step()
    training.steps(1)
    training.compile_seconds = 3.0
    training.steps(3)
    assert len(training.sent) == 1
    with contextlib.suppress(SystemExit):
        training.steps(3)
    assert (training.sent[1].outcome, training.sent[1].compile_seconds) == (Outcome.OK, 3.0)


def test_a_model_that_is_compiled_in_every_step_ends_the_trial(training):
    training.step()
    for _ in range(COMPILATIONS):
        training.compile_seconds = 1.0
        training.step(TARGET)
    assert len(training.sent) == 1
    training.compile_seconds = 1.0
    with pytest.raises(Abandon):
        training.step(TARGET)
    assert training.sent[1].outcome is Outcome.SCRIPT_ERROR
    assert "dynamic=True" in training.sent[1].message


def make_sampler(length, batch_size, *, drop_last=False):
    """A batch sampler with the attributes of torch's own."""
    return types.SimpleNamespace(sampler=range(length), batch_size=batch_size, drop_last=drop_last)


@pytest.mark.parametrize(
    ("length", "drop_last", "sizes"),
    [(10, False, [4, 4, 2]), (10, True, [4, 4]), (8, True, [4, 4]), (3, True, []), (3, False, [3]), (0, False, [])],
)
def test_every_sample_is_drawn_once_and_the_rest_as_asked(length, drop_last, sizes):
    batches = list(_draw_batches(make_sampler(length, 4, drop_last=drop_last)))
    assert [len(batch) for batch in batches] == sizes
    assert [index for batch in batches for index in batch] == list(range(sum(sizes)))


def test_a_new_size_holds_from_the_next_batch_on():
    sampler = make_sampler(12, 2)
    drawing = _draw_batches(sampler)
    first = next(drawing)
    sampler.batch_size = 5
    assert [first, *drawing] == [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]


@pytest.fixture
def end_with(make_training):
    """Has an optimizer step in a training whose optimizers step one by one; whether that ends a step."""
    training = make_training(orders=[dataclasses.replace(FIRST, steps=99)])
    training.agent.on_session(lambda: training.detection)

    def end_with(optimizer, *, is_forward_open):
        training.has_open_forward, before = is_forward_open, training.agent.steps
        training.agent.on_forward(TARGET, training.check)
        training.agent.on_step(optimizer)
        return training.agent.steps > before

    return end_with


def test_no_step_ends_while_a_forward_waits_for_its_backward(end_with):
    """Only then a session can be rebuilt."""
    discriminator, generator = Optimizer(), Optimizer()
    for _ in range(5):
        assert not end_with(discriminator, is_forward_open=True)
        assert end_with(generator, is_forward_open=False)


def test_an_optimizer_that_is_dropped_is_followed_by_the_next(end_with):
    """A script that makes a new optimizer for each phase has every step of it counted."""
    assert end_with(Optimizer(), is_forward_open=False)
    assert end_with(Optimizer(), is_forward_open=False)


@pytest.mark.parametrize("is_forward_open", [False, True], ids=["an optimizer that stops", "a forward without an end"])
def test_what_never_comes_holds_nothing_up(end_with, is_forward_open):
    old, new = Optimizer(), Optimizer()
    if not is_forward_open:
        end_with(old, is_forward_open=False)
    ended = [end_with(new, is_forward_open=is_forward_open) for _ in range(PATIENCE + 3)]
    assert ended == [False] * PATIENCE + [True] * 3
