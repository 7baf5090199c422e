import contextlib
import ctypes
import dataclasses
import functools
import logging
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from autorecompute.backends.torch.fake.live import LiveBytes, Segment, tensors_of
from autorecompute.backends.torch.fake.repeats import Extent, Row
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.fake.tensors import FakeOperators
from autorecompute.backends.torch.find.detection import detect, space_of
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.records import CHECKPOINT, DROP, KEEP_MATMUL, NOTHING
from autorecompute.plans import Choice, Config
from stand_ins.surveyed import Surveyed, detect_in
from tiny_models import Training, call_of, make

LAYERS = 5


def faked(training, **script):
    """An optimizer of the model, what is found in it, its board, and fake steps of what a script does."""
    optimizer = torch.optim.AdamW(training.model.parameters())
    found = detect_in(training)
    steps = FakeSteps(
        training.model, found.structure.units, Script(*call_of(training), (optimizer,), **script), found.values
    )
    return optimizer, found, found.switchboard(training.model), steps


def own_loss(training):
    return (
        {"loss": lambda scores: functional.cross_entropy(scores, training.batch["y"])} if call_of(training)[0] else {}
    )


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


@pytest.mark.parametrize("name", ["bert", "encoder", "resnet"])
def test_a_fake_step_has_the_base_and_the_peak_of_a_real_one_to_the_byte(name):
    training = make(name)
    optimizer, found, board, steps = faked(training, **own_loss(training))
    pairs = []
    for choices in configs_of(found):
        forecast = steps.run(board, choices)
        board.set(choices)
        measured = real(training, optimizer)
        pairs.append(((forecast.base, forecast.peak), (measured.base, measured.peak)))
        board.set([])
    assert [fake for fake, _ in pairs] == [measured for _, measured in pairs]
    assert len({peak for (_, peak), _ in pairs}) > 1


def test_weights_that_autocast_casts_live_as_long_as_in_a_script():
    """They go where the script's autocast ends, and those of a recompute where that ends."""
    training, around = make("llama"), functools.partial(torch.autocast, "cpu", torch.bfloat16)
    with around():
        optimizer, found, board, steps = faked(training)
    for choices in configs_of(found):
        with around():
            forecast = steps.run(board, choices)
        board.set(choices)
        assert real(training, optimizer, around).peak == forecast.peak
        board.set([])


def test_weights_that_autocast_casts_go_at_its_end_in_as_many_units_as_are_made_again():
    with torch.autocast("cpu", torch.bfloat16):
        looked = Surveyed.of("llama", layers=4)
        for site, count in (("model.layers.*", 3), ("model.layers.*.mlp.down_proj", 1), ("model.layers.*", 4)):
            config = Config(frozenset({Choice(site, CHECKPOINT, count)}))
            guess, whole = looked.memory.forecast(config, {}).live_bytes, looked.peak_of(config)
            assert guess == pytest.approx(whole, abs=512)  # a weight has 32 KiB, angles of positions less


@pytest.mark.parametrize("name", ["encoder", "resnet"])
def test_a_model_without_a_loss_of_its_own_is_forecast_with_a_cross_entropy(name):
    """What a script's cross entropy takes is in the forecast but for the labels of its batch."""
    training = make(name)
    meters = []
    for script in ({}, own_loss(training)):
        _, _, board, steps = faked(training, **script)
        meters.append(steps.run(board, []))
    guess, exact = (meter.peak - meter.base for meter in meters)
    assert guess == pytest.approx(exact, rel=0.001)


@pytest.mark.parametrize("is_kept", [False, True], ids=["given on", "kept"])
@pytest.mark.parametrize("choices", [[], [Choice("blocks.*", CHECKPOINT)]], ids=["none", "blocks"])
def test_scores_that_a_script_keeps_or_gives_to_its_loss_are_in_the_forecast(is_kept, choices):
    kept = []

    def loss_of_scores_that_outweigh_all_else(model, batch):
        kept.clear()
        scores = model(batch["x"])
        kept.extend([scores] * is_kept)
        return functional.cross_entropy(scores.flatten(0, 1), batch["x"].flatten())

    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))
    parts = OrderedDict(embedding=nn.Embedding(2000, 8), blocks=blocks, head=nn.Linear(8, 2000))
    batch = {"x": torch.randint(0, 2000, (4, 16))}
    training = Training(nn.Sequential(parts), batch, loss_of_scores_that_outweigh_all_else)
    optimizer, _, board, steps = faked(training, holds_result=is_kept)
    guess = steps.run(board, choices)
    board.set(choices)
    measured = real(training, optimizer)
    assert guess.peak - guess.base == pytest.approx(measured.peak - measured.base, rel=0.01)


class Classes(nn.Module):
    """Counts its tokens by ``one_hot``, which checks real tensors alone, and takes the rows of the first class."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(4, 8), nn.Linear(8, 4)

    def forward(self, tokens):
        counts = functional.one_hot(tokens, 4).sum()
        rows = torch.nonzero(tokens == 0).squeeze(-1)
        return self.head(functional.gelu(self.table(tokens))[rows]) / counts


def test_an_operator_that_looks_at_real_tensors_alone_shifts_no_other_value():
    training = Training(
        Classes(), {"x": torch.tensor([0, 1, 0, 2, 3, 0])}, lambda model, batch: model(batch["x"]).sum()
    )
    optimizer, _, board, steps = faked(training, loss=torch.sum)
    assert steps.run(board, []).peak == real(training, optimizer).peak


class Sized(nn.Sequential):
    def forward(self, x):
        return super().forward(x) / torch.ones(8, 1)


def test_a_model_that_takes_no_other_batch_is_surveyed_in_silence(caplog):
    """Twice the batch is tried, and torch logs no error of it; later it logs errors again."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    level = log.level
    log.addHandler(caplog.handler)  # torch's loggers hand nothing on
    try:
        steps = Surveyed(
            nn.Sequential(*(Sized(nn.Linear(4, 4), nn.GELU()) for _ in range(2))), Script((torch.ones(8, 4),), {})
        ).steps
    finally:
        log.removeHandler(caplog.handler)
    assert steps.parts
    assert caplog.records == []
    assert log.level == level


class Marking(torch.optim.AdamW):
    """Writes in itself and in its groups as it steps, as 8-bit and learning-rate-free optimizers do."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.table, self.steps = {"map": torch.ones(300)}, 0

    def step(self):
        self.steps += 1
        self.table["map"] = self.table["map"] * self.param_groups[0]["params"][0].sum()
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        self.param_groups[0]["lr"] = 1.0
        super().step()


def feed_forward():
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(4)))


def test_a_fake_step_leaves_no_mark_on_an_optimizer():
    model = feed_forward()
    optimizer = Marking(model.parameters())
    table, group = optimizer.table["map"], dict(optimizer.param_groups[0])
    assert Surveyed(model, Script((torch.rand(16, 32),), {}, (optimizer,))).steps.options
    assert optimizer.steps == 0
    assert optimizer.table["map"] is table
    assert optimizer.param_groups[0] == group
    assert not optimizer.state


def test_an_optimizers_state_is_counted_once_whether_it_is_there_already_or_will_be():
    model, x = feed_forward(), torch.rand(16, 32)
    optimizer = torch.optim.AdamW(model.parameters())
    script = Script((x,), {}, (optimizer,))
    before = Surveyed(model, script).steps.later_bytes
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    held = sum(value.nbytes for values in optimizer.state.values() for value in values.values())
    assert before >= held
    assert Surveyed(model, script).steps.later_bytes <= before - held


class ByAddress(nn.Linear):
    """Moves memory by its address, as kernels of Triton do."""

    def forward(self, x):
        result = super().forward(x)
        ctypes.memmove(result.data_ptr(), result.data_ptr(), result.nbytes)
        return torch.relu(result)


def test_a_kernel_that_takes_the_address_of_a_fake_tensor_ends_with_an_error_and_not_with_the_process():
    model = nn.Sequential(*(ByAddress(32, 32) for _ in range(4)))
    with pytest.raises(RuntimeError, match="data"):
        Surveyed(model, Script((torch.rand(16, 32),), {}))


def brief_and_whole(model, call):
    """The units that repeat, and what steps take with them left out and with all of them."""
    found = detect(model, *call)
    board, script = found.switchboard(model), Script(*call, (torch.optim.AdamW(model.parameters()),))
    whole = dataclasses.replace(found, repeated=frozenset())
    survey_steps(model, found, board, script)  # the first of all makes what torch keeps for later ones
    return found.repeated, survey_steps(model, found, board, script), survey_steps(model, whole, board, script)


def test_every_byte_and_all_work_is_told_where_the_third_and_fourth_of_five_units_are_left_out():
    training = make("encoder", layers=LAYERS)
    with torch.autocast("cpu", torch.bfloat16):
        repeated, brief, whole = brief_and_whole(training.model, call_of(training))
    assert [path.rpartition(".")[2] for path in sorted(repeated)] == ["2", "3"]
    assert brief == whole


class Keeping(nn.Module):
    """Blocks whose results are kept until the end, the third one's in a type of its own."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x):
        kept = []
        for place, block in enumerate(self.blocks):
            x = block(x)
            kept.append(x.double() if place == 2 else x)
        return sum(one.sum() for one in kept)


def test_only_units_that_are_given_the_same_are_left_out_and_never_what_is_done_elsewhere_with_their_results():
    """What is done with each unit's result is no part of the unit: the steps are whole ones."""
    repeated, brief, whole = brief_and_whole(Keeping(), ((torch.randn(4, 16),), {}))
    assert repeated
    assert brief == whole
    assert detect(Mixed(), (torch.randn(4, 16),), {}).repeated == frozenset()


class Adding(nn.Sequential):
    def forward(self, x, other):
        return super().forward(x) + other


class Mixed(nn.Module):
    """Blocks of which every second is given another tensor."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Adding(nn.Linear(16, 16), nn.GELU()) for _ in range(LAYERS))

    def forward(self, x):
        others = torch.ones_like(x), torch.zeros_like(x)
        for place, block in enumerate(self.blocks):
            x = block(x, others[place % 2])
        return x.sum()


def test_a_step_with_a_segment_missing_or_twice_does_not_stand_for_a_whole_one():
    row = Row(["a", "b", "c", "d"], {"c"})
    order = [Segment("forward", unit) for unit in (0, 1, 2, 3)] + [Segment("forward", 3, is_behind=True)]
    pieces = [(Segment("forward", unit), ((0, Extent(unit, unit)),)) for unit in (0, 1, 2)]
    pieces.append((Segment("forward", 2, is_behind=True), ((0, Extent(3, 3)),)))
    assert [extent.change for _, ((_, extent),) in row.whole(order, pieces)] == [0, 1, 1, 2, 3]
    for wrong in (pieces[1:], pieces[:-1], [*pieces, pieces[1]]):
        assert row.whole(order, wrong) is None


@pytest.mark.parametrize("choices", [[], [Choice("*", CHECKPOINT)]], ids=["plain", "blocks"])
def test_all_calls_of_a_step_are_in_the_forecast(choices):
    """Two views of a batch, whose activations are alive together."""
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(5)))
    optimizer, x = torch.optim.AdamW(model.parameters()), torch.randn(64, 32)
    found = detect(model, (x,), {}, calls=2)
    board = found.switchboard(model)
    script = Script((x,), {}, (optimizer,), loss=torch.sum, holds_result=True, calls=2)
    surveyed = survey_steps(model, found, board, script)
    memory = TorchMemoryModel(space_of(found, board, surveyed), surveyed, resting_bytes=0, sizes={})
    board.set(choices)
    for _ in range(2):
        views = [x.clone(), x.clone()]
        meter = LiveBytes(tensors_of(model, [optimizer], views))
        with meter:
            one, two = map(model, views)
            loss = one.sum() + two.sum()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        del one, two, loss
    forecast = memory.forecast(Config(frozenset(choices)), memory.dims)
    assert forecast.live_bytes == meter.peak - meter.base
    assert found.repeated  # the same in each call


aten = torch.ops.aten


@pytest.fixture
def mode():
    with FakeTensorMode() as mode:
        yield mode


def storage_of(tensor):
    return tensor.untyped_storage()._cdata


@pytest.mark.parametrize(
    ("function", "more"),
    [
        (aten.add.Tensor, (1,)),
        (aten.mean.dim, ([1], True)),
        (aten.native_layer_norm.default, ([6], None, None, 1e-5)),
        (aten.transpose.int, (0, 1)),
        (aten._unsafe_view.default, ([24],)),
        (aten.split.Tensor, (2, 1)),
        (aten.max.dim, (1,)),
        (aten._to_copy.default, ()),
        (aten.relu_.default, ()),
    ],
)
def test_a_remembered_result_is_the_one_of_the_mode(mode, function, more):
    operators, x = FakeOperators(mode, lambda *_: NOTHING), torch.randn(4, 6)

    def forms(results):
        return [(o.shape, o.stride(), o.dtype, o.device, storage_of(o) == storage_of(x)) for o in results]

    expected = forms(list(tensors_in(function(x, *more))))
    runs = [list(tensors_in(operators.run(function, (x, *more), {})[0])) for _ in range(3)]
    assert [forms(results) for results in runs] == [expected] * 3
    own = [storage_of(one) for results in runs for one in results if storage_of(one) != storage_of(x)]
    assert len(set(own)) == len(own)


def test_a_number_is_told_from_an_equal_one_of_another_type(mode):
    operators = FakeOperators(mode, lambda *_: NOTHING)
    kinds = [operators.run(aten.full.default, ([2], value), {})[0].dtype for value in (1, 1.0, True)]
    assert kinds == [torch.int64, torch.float32, torch.bool]
