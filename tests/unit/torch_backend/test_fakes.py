"""Steps on fake tensors: the bytes of real ones, to the byte."""

import contextlib
import copy
import functools
import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.live import LiveBytes, tensors_of
from autorecompute.backends.torch.options import CHECKPOINT, DROP, KEEP_MATMUL
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.plans import Choice
from tiny_models import call_of, differences, make


def faked(training, optimizer, values, units):
    """Fake steps of what the script does."""
    args, kwargs = call_of(training)
    own = {"loss": lambda scores: functional.cross_entropy(scores, training.batch["y"])} if args else {}
    return FakeSteps(training.model, units, Script(args, kwargs, (optimizer,), **own), values)


def real(training, optimizer, around=contextlib.nullcontext):
    """The bytes of the second of two real steps, with the forward pass in a context."""
    for _ in range(2):
        meter = LiveBytes(tensors_of(training.model, [optimizer], call_of(training)))
        with meter:
            with around():
                loss = training.loss(training.model, training.batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del loss
    return meter


def configs_of(found):
    """Nothing, all blocks, products kept in one and attention made again in the other, a block and all operators."""
    block = found.blocks[0]
    operators = [Choice(site.name, DROP) for site in found.sites if DROP in site.options]
    attention = [Choice(site.name, CHECKPOINT) for site in found.sites if site.attention]
    return [
        [],
        [Choice(block, CHECKPOINT)],
        [Choice(block, KEEP_MATMUL, 1), *attention],
        [Choice(block, CHECKPOINT, 1), *operators],
    ]


def test_a_fake_step_has_the_peak_of_a_real_one_to_the_byte(training):
    """Base and peak are equal for every kind of config, with the optimizer's step in them."""
    found = detect(training.model, *call_of(training))
    optimizer = torch.optim.AdamW(training.model.parameters())
    board = found.switchboard(training.model)
    steps = faked(training, optimizer, found.values, found.structure.units)
    pairs = []
    for choices in configs_of(found):
        forecast = steps.run(board, choices)
        board.set(choices)
        measured = real(training, optimizer)
        pairs.append(((forecast.base, forecast.peak), (measured.base, measured.peak)))
        board.set([])
    assert [fake for fake, _ in pairs] == [measured for _, measured in pairs]
    assert len({peak for (_, peak), _ in pairs}) > 1


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_weights_that_autocast_casts_live_as_long_as_in_a_script(name):
    """They go where the script's autocast ends, and those of a recompute where that ends: to the byte."""
    training, around = make(name), functools.partial(torch.autocast, "cpu", torch.bfloat16)
    optimizer = torch.optim.AdamW(training.model.parameters())
    with around():
        found = detect(training.model, *call_of(training))
        board = found.switchboard(training.model)
        steps = faked(training, optimizer, found.values, found.structure.units)
    for choices in configs_of(found):
        with around():
            forecast = steps.run(board, choices)
        board.set(choices)
        assert real(training, optimizer, around).peak == forecast.peak
        board.set([])


@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_a_model_without_a_loss_of_its_own_is_forecast_with_a_cross_entropy(name):
    """What a script's cross entropy takes is in the forecast but for the labels of its batch."""
    training = make(name)
    found = detect(training.model, *call_of(training))
    board, units = found.switchboard(training.model), found.structure.units
    optimizer = torch.optim.AdamW(training.model.parameters())
    guess = FakeSteps(training.model, units, Script(*call_of(training), (optimizer,)), found.values).run(board, [])
    exact = faked(training, optimizer, found.values, units).run(board, [])
    assert guess.peak - guess.base == pytest.approx(exact.peak - exact.base, rel=0.001)


@pytest.mark.parametrize("style", ["given on", "kept"])
@pytest.mark.parametrize("choices", [[], [Choice("blocks.*", CHECKPOINT)]], ids=["none", "blocks"])
def test_a_loss_of_the_script_is_in_the_forecast(style, choices):
    """Scores that outweigh all else, with a name that outlives the backward pass or without: to a hundredth."""
    torch.manual_seed(0)
    model, x = Wide(), torch.randint(0, 2000, (4, 16))
    optimizer = torch.optim.AdamW(model.parameters())
    found = detect(model, (x,), {})
    board = found.switchboard(model)
    script = Script((x,), {}, (optimizer,), holds_result=style == "kept")
    guess = FakeSteps(model, found.structure.units, script, found.values).run(board, choices)
    board.set(choices)
    for _ in range(2):
        meter = LiveBytes(tensors_of(model, [optimizer], x))
        with meter:
            scores = [model(x)]
            taken = scores[0] if style == "kept" else scores.pop()
            loss = functional.cross_entropy(taken.flatten(0, 1), x.flatten())
            if style != "kept":
                del taken
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del loss, scores
    assert guess.peak - guess.base == pytest.approx(meter.peak - meter.base, rel=0.01)


class Wide(nn.Module):
    """Two thin blocks and a head of many classes."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(2000, 8), nn.Linear(8, 2000)
        self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))

    def forward(self, x):
        """Scores of each class for each token."""
        return self.head(self.blocks(self.embedding(x)))


@pytest.mark.parametrize("name", ["bert", "resnet"])
def test_nothing_is_left_of_a_fake_step(name):
    """Training goes on bit for bit as without one, the optimizer's state included."""
    training = make(name)

    def train(training, *, fake):
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(training.model.parameters())
        found = detect(training.model, *call_of(training))
        board = found.switchboard(training.model)
        for _ in range(2):
            if fake:
                faked(training, optimizer, found.values, found.structure.units).run(board, configs_of(found)[-1])
            training.loss(training.model, training.batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        return dict(training.model.state_dict()) | {"next": torch.rand(1)}

    assert differences(train(copy.deepcopy(training), fake=False), train(training, fake=True)) == []


class _Classes(nn.Module):
    """Counts its tokens by ``one_hot``, which checks real tensors alone, and takes the rows of the first class."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(4, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        counts = functional.one_hot(tokens, 4).sum()
        rows = torch.nonzero(tokens == 0).squeeze(-1)
        return self.head(functional.gelu(self.table(tokens))[rows]) / counts


def test_an_operator_that_looks_at_real_tensors_alone_shifts_no_other_value():
    """As many rows come out of ``nonzero`` in a fake step as in the real one, and the bytes are the same."""
    model, tokens = _Classes(), torch.tensor([0, 1, 0, 2, 3, 0])
    found = detect(model, (tokens,), {})
    optimizer = torch.optim.SGD(model.parameters())
    script = Script((tokens,), {}, (optimizer,), loss=lambda scores: scores.sum())
    forecast = FakeSteps(model, found.structure.units, script, found.values).run(found.switchboard(model), [])
    meter = LiveBytes(tensors_of(model, [optimizer], tokens))
    with meter:
        loss = model(tokens).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert forecast.peak == meter.peak


class _Sized(nn.Module):
    """A block that bears one size of a batch."""

    def __init__(self):
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), nn.GELU()
        self.register_buffer("scale", torch.ones(8, 1))

    def forward(self, x):
        return self.act(self.linear(x)) / self.scale


def test_a_model_that_takes_no_other_batch_is_surveyed_in_silence(caplog):
    """Twice the batch is tried, and torch logs no error of it; later it logs errors again."""
    model, x = nn.Sequential(_Sized(), _Sized()), torch.ones(8, 4)
    found, log = detect(model, (x,), {}), logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.addHandler(caplog.handler)  # torch's loggers hand nothing on
    try:
        steps = survey_steps(model, found, found.switchboard(model), Script((x,), {}))
    finally:
        log.removeHandler(caplog.handler)
    assert steps.parts
    assert caplog.records == []
    assert log.level == level


def test_the_events_of_a_step_add_up_to_its_peak():
    """Units are gone through forwards and then backwards, and the running sum of changes ends where it began."""
    training = make("gpt2", layers=3)
    found = detect(training.model, *call_of(training))
    optimizer = torch.optim.AdamW(training.model.parameters())
    meter = faked(training, optimizer, found.values, found.structure.units).run(
        found.switchboard(training.model), [Choice("transformer.h.*", CHECKPOINT, 2)]
    )
    sums, now = [], 0
    for event in meter.events:
        now += event.change
        sums.append(now)
    assert max(sums) == meter.peak - meter.base
    order = list(dict.fromkeys((event.segment.phase, event.segment.unit) for event in meter.events))
    assert [unit for phase, unit in order if phase == "forward" and 0 <= unit < 3] == [0, 1, 2]
    assert [unit for phase, unit in order if phase == "backward" and 0 <= unit < 3] == [2, 1, 0]
