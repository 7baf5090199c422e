"""What a script checkpoints itself: seen however it does so, and run plainly where ours takes its place."""

import functools

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from autorecompute.backends.torch.fake.live import BACKWARD
from autorecompute.backends.torch.fake.repeats import cut
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find import own_checkpoints
from autorecompute.backends.torch.forecast.plans_file import PlansFile
from autorecompute.backends.torch.forecast.records import CHECKPOINT, describe_own
from autorecompute.backends.torch.switch.applying import apply_now
from autorecompute.errors import OwnCheckpointingError
from autorecompute.plans import Choice, Config
from stand_ins.other_checkpoint import Recomputed
from stand_ins.surveyed import detect_in
from tiny_models import Training, call_of, cross_entropy, differences, make

REENTRANT = [True, False]
BLOCKS = "blocks.*"


@pytest.fixture(autouse=True)
def as_before():
    yield
    own_checkpoints.restore()


class Tally:
    """Counts runs where no recompute puts back what it finds: not on the module, nor in a list that it has."""

    runs = 0


class Layer(nn.Module):
    gradient_checkpointing = False

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.tally = Tally()

    def forward(self, x):
        self.tally.runs += 1
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Wrapped(Layer):
    """As a layer of transformers 5.24: its class's forward checkpoints, if it still is the class's."""

    def forward(self, x):
        is_outermost = type(self).forward is Wrapped.__dict__["forward_with_checkpointing"]
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled() and is_outermost:
            return self._gradient_checkpointing_func(functools.partial(super().forward), x)
        return super().forward(x)

    forward_with_checkpointing = forward


class Called(Layer):
    """As a layer of transformers 4.53 to 5.0: its call checkpoints."""

    def __call__(self, x):
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(functools.partial(super().__call__), x)
        return super().__call__(x)


class Model(nn.Module):
    """As a model of transformers 4.48, where it has plain layers: it checkpoints their calls."""

    def __init__(self, kind=Layer):
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(4))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for block in self.blocks:
            is_ours = block.gradient_checkpointing and type(block) is Layer
            x = self._gradient_checkpointing_func(block.__call__, x) if is_ours else block(x)
        return self.head(x)


def training_of(model):
    torch.manual_seed(0)
    batch = {"x": torch.randn(4, 8, requires_grad=True), "y": torch.randint(10, (4,))}
    return Training(model, batch, cross_entropy)


def checkpointing(kind, function, every=1):
    training = training_of(Model(kind))
    training.model._gradient_checkpointing_func = function
    for place, block in enumerate(training.model.blocks):
        block._gradient_checkpointing_func = function
        block.gradient_checkpointing = place % every == 0
    return training


def torchs(*, use_reentrant=False):
    return functools.partial(checkpoint, use_reentrant=use_reentrant)


def offloading(function, x):
    with save_on_cpu():
        return checkpoint(function, x, use_reentrant=False)


def runs_in(training):
    """How often each block runs in a step."""
    for block in training.model.blocks:
        block.tally.runs = 0
    gradients = training.gradients()
    return [block.tally.runs for block in training.model.blocks], gradients


KINDS = [Layer, Called, Wrapped]
WAYS = [*(pytest.param(torchs(use_reentrant=way), id=f"reentrant={way}") for way in REENTRANT), offloading]


@pytest.mark.parametrize("kind", KINDS)
def test_where_every_second_layer_is_checkpointed_the_others_are_offered_and_theirs_stay_on(kind):
    training = checkpointing(kind, torchs(), every=2)
    expected = training.gradients()
    found = detect_in(training)
    assert found.checkpointed == (f"{BLOCKS} (2 of 4)",)
    (site,) = (site for site in found.sites if site.name == BLOCKS)
    assert site.occurrences == ("blocks.1", "blocks.3")
    board = found.switchboard(training.model)
    assert runs_in(training)[0] == [2, 1, 2, 1]
    board.set([Choice(BLOCKS, CHECKPOINT)])
    runs, gradients = runs_in(training)
    board.set([])
    assert (runs, differences(gradients, expected)) == ([2, 2, 2, 2], [])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("function", WAYS)
def test_layers_that_a_library_checkpoints_are_not_offered_and_replaced_they_run_once_and_ours_again(kind, function):
    training = checkpointing(kind, function)
    found = detect_in(training)
    assert found.checkpointed == (BLOCKS,)
    assert not any(site.name.startswith("blocks") for site in found.sites)
    expected = training.gradients()
    own_checkpoints.replace()
    own_checkpoints.prepare(training.model)
    found = detect_in(training)
    own_checkpoints.require_off(found.refusals)
    assert found.checkpointed == (BLOCKS,)
    board = found.switchboard(training.model)
    assert runs_in(training)[0] == [1, 1, 1, 1]
    board.set([Choice(BLOCKS, CHECKPOINT, 2)])
    runs, gradients = runs_in(training)
    board.set([])
    assert (runs, differences(gradients, expected)) == ([2, 2, 1, 1], [])
    own_checkpoints.restore()
    if function is not offloading:  # the model keeps what it was prepared with
        assert runs_in(training)[0] == [2, 2, 2, 2]


def test_an_error_inside_of_a_replaced_checkpoint_reaches_the_script_and_what_cannot_be_switched_off_is_refused():
    own_checkpoints.replace()
    for way in REENTRANT:
        with pytest.raises(ZeroDivisionError):
            checkpoint(lambda _: 1 / 0, torch.ones(1, requires_grad=True), use_reentrant=way)
    found = detect_in(training_of(Others()))
    with pytest.raises(OwnCheckpointingError, match=r"^blocks\.\* is still recomputed by the script"):
        own_checkpoints.require_off(found.refusals)
    with pytest.raises(OwnCheckpointingError, match="take them out of the script"):
        own_checkpoints.prepare(torch.compile(nn.Linear(2, 2), backend="eager"))


class Sequence(Model):
    def forward(self, x):
        return self.head(checkpoint_sequential(list(self.blocks), 2, x, use_reentrant=False))


class Functional(Model):
    def forward(self, x):
        return checkpoint(torch.tanh, super().forward(x), use_reentrant=False)


class Lambdas(Model):
    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(lambda x, block=block: block(x) + 1, x, use_reentrant=True)
        return self.head(x)


class Others(Model):
    def forward(self, x):
        for block in self.blocks:
            x = Recomputed.apply(block, x)
        return self.head(x)


@pytest.mark.parametrize(
    ("kind", "places"),
    [(Model, ()), (Sequence, (f"{BLOCKS} (2 of 4)",)), (Functional, ("the model",)), (Lambdas, (BLOCKS,)),
     (Others, (BLOCKS,))],
)  # fmt: skip
def test_where_a_script_checkpoints_is_told(kind, places):
    assert detect_in(training_of(kind())).checkpointed == places


@pytest.mark.parametrize("use_reentrant", REENTRANT)
def test_those_of_the_installed_transformers_are_seen_and_replaced(use_reentrant):
    training = make("llama")
    training.model.activation_checkpointing_enable({"use_reentrant": use_reentrant})
    assert detect_in(training).checkpointed == ("model.layers.*",)
    own_checkpoints.replace()
    own_checkpoints.prepare(training.model)
    found = detect_in(training)
    assert found.checkpointed == ("model.layers.*",)
    assert "model.layers.*" in found.blocks


@pytest.mark.parametrize("choices", [[], [Choice(BLOCKS, CHECKPOINT, 1)]])
def test_a_plans_file_that_was_measured_so_switches_theirs_off(choices):
    training = checkpointing(Wrapped, torchs())
    file = PlansFile(config=Config(frozenset(choices)), replaces_checkpointing=True)
    tuned = apply_now(file, training.model, *call_of(training))
    assert runs_in(training)[0] == [1 + bool(choices), 1, 1, 1]
    tuned.switch(Config())


def test_a_step_with_reentrant_checkpoints_goes_back_through_one_part_after_the_other():
    training = checkpointing(Layer, torchs(use_reentrant=True))
    found = detect_in(training)
    steps = FakeSteps(training.model, found.structure.units, Script(*call_of(training)), found.values)
    with steps.prepared(found.switchboard(training.model)) as (plain, _):
        pieces = cut(plain.events, len(found.calls))
    units = [segment.unit for segment, _ in pieces if segment.phase == BACKWARD]
    assert units == sorted(units, reverse=True)


@pytest.mark.parametrize(
    ("places", "is_replaced", "sentence"),
    [
        (["h.*"], False, "the script checkpoints h.* itself, which stays on: tune in its place with --replace-check"),
        (list("abcde"), False, "the script checkpoints a, b, c and 2 more itself"),
        (["h.*"], True, "the script's own checkpointing of h.* is off here: train with 'autorecompute run'"),
        ([], True, "--replace-checkpointing has nothing to replace"),
        ([], False, None),
    ],
)
def test_one_sentence_says_what_became_of_them(places, is_replaced, sentence):
    told = list(describe_own(places, is_replaced=is_replaced))
    assert len(told) == (sentence is not None)
    assert all(one.startswith(sentence) for one in told)
