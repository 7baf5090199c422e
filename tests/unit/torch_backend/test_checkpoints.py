"""Module calls made again: the same bits as without, whatever the module does."""

import copy
import gc
import inspect
import io

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from autorecompute.backends.torch.checkpoints import Checkpoint, checkpointed, keeping
from autorecompute.backends.torch.interception import put_around, release
from autorecompute.backends.torch.options import CHECKPOINT, KEEP_MATMUL
from autorecompute.backends.torch.probe import Probe
from autorecompute.backends.torch.structure import structure_of
from autorecompute.backends.torch.switchboard import Site, Switchboard
from autorecompute.plans import Choice
from tiny_models import BATCH, ResNet, differences, make


def board_of(model, options=(CHECKPOINT, KEEP_MATMUL)):
    """Every module group of a model as a site, where its modules are called."""
    groups = structure_of(model).groups.items()
    called = {p for p, m in model.named_modules() if not isinstance(m, nn.ModuleList)}
    return Switchboard(model, [Site(name, options, paths) for name, paths in groups if called.issuperset(paths)])


def blocks_of(training):
    """The name of the group of whole blocks."""
    structure = structure_of(training.model)
    return structure.group_of(structure.units[0])


class Sibling(nn.Module):
    """A module whose forward is inherited and calls its parent's."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        """A product through tanh."""
        return torch.tanh(self.linear(x))


class Child(Sibling):
    """Calls its parent's forward."""

    def forward(self, x):
        """Twice the parent's."""
        return 2 * super().forward(x)


class Heir(Sibling):
    """Inherits its forward."""


@pytest.mark.parametrize("option", [CHECKPOINT, KEEP_MATMUL])
@pytest.mark.parametrize("count", [None, 1])
def test_blocks_are_made_again_bit_for_bit(training, option, count):
    """Loss, gradients and buffers are those without recompute, for all blocks and for the first."""
    expected = copy.deepcopy(training).gradients()
    board_of(training.model).set([Choice(blocks_of(training), option, count)])
    assert differences(training.gradients(), expected) == []


@pytest.mark.parametrize("name", ["gpt2", "bert", "vit", "encoder"])
def test_every_module_group_can_be_made_again_alone(name):
    """The checkpoint of any one group gives the bits of the plain step."""
    training = make(name)
    board = board_of(training.model, (CHECKPOINT,))
    expected = training.gradients()
    wrong = {}
    for site in board.sites:
        board.set([Choice(site, CHECKPOINT)])
        wrong[site] = differences(training.gradients(), expected)
    assert {site: names for site, names in wrong.items() if names} == {}


@pytest.mark.parametrize("option", [CHECKPOINT, KEEP_MATMUL])
def test_a_block_is_made_again_in_bfloat16_as_it_was(training, option):
    """Under autocast the recompute runs in the types of the forward pass."""
    expected = copy.deepcopy(training).gradients(around=torch.autocast("cpu", torch.bfloat16))
    board_of(training.model).set([Choice(blocks_of(training), option)])
    assert differences(training.gradients(around=torch.autocast("cpu", torch.bfloat16)), expected) == []


def test_a_kept_graph_is_gone_through_twice(training):
    """A second backward pass over the same graph adds the same gradients again, and writes no buffer again."""

    def twice(training):
        torch.manual_seed(1)
        loss = training.loss(training.model, training.batch)
        loss.backward(retain_graph=True)
        loss.backward()
        return training.collect(loss)

    expected = twice(copy.deepcopy(training))
    board_of(training.model).set([Choice(blocks_of(training), CHECKPOINT)])
    assert differences(twice(training), expected) == []


def test_plain_checkpoints_write_the_statistics_of_batchnorm_twice():
    """The trap: with torch's checkpoint alone the running statistics differ; ours are those of one forward."""
    images = torch.randn(BATCH, 3, 16, 16)
    plain, ours, none = ResNet(), ResNet(), ResNet()
    plain.load_state_dict(none.state_dict())
    ours.load_state_dict(none.state_dict())
    none(images).sum().backward()
    block = plain.layer1[0]
    put_around(block, [lambda call, _module, x: checkpoint(call, x, use_reentrant=False)])
    plain(images).sum().backward()
    put_around(ours.layer1[0], [Checkpoint(ours.layer1[0])])
    ours(images).sum().backward()
    statistics = [dict(model.named_buffers()) for model in (none, plain, ours)]
    assert "layer1.0.bn1.running_mean" in differences(statistics[0], statistics[1])
    assert differences(statistics[0], statistics[2]) == []


def test_a_spectral_norm_is_made_again_from_the_vectors_it_had():
    """Power iteration writes its vectors first: made again from the written ones it gives another weight."""

    def gradients(around):
        torch.manual_seed(0)
        layer = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4))
        if around:
            put_around(layer, [around(layer)])
        found = []
        for _ in range(2):
            layer(torch.ones(2, 4)).square().sum().backward()
            found += [p.grad.clone() for p in layer.parameters()]
        return found

    plain = gradients(lambda _: lambda call, _module, x: checkpoint(call, x, use_reentrant=False))
    none, ours = gradients(None), gradients(Checkpoint)
    assert not all(torch.equal(a, b) for a, b in zip(none, plain, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(none, ours, strict=True))


def test_a_kept_random_result_shifts_the_random_numbers_after_it():
    """The trap: keeping one of two dropouts gives wrong gradients silently; asking for that is refused."""
    first, second = (torch.randn(16, 16) for _ in range(2))

    def forward(x):
        for weight in (first, second):
            x = torch.native_dropout(torch.relu(x @ weight), 0.5, train=True)[0]
        return x.sum()

    def gradient(call):
        torch.manual_seed(1)
        x = torch.ones(4, 16, requires_grad=True)
        call(x).backward()
        return x.grad

    def keep_the_first():
        seen = {False: 0, True: 0}

        def policy(context, operator, *_args, **_kwargs):
            if operator is not torch.ops.aten.native_dropout.default:
                return CheckpointPolicy.PREFER_RECOMPUTE
            seen[context.is_recompute] += 1
            is_first = seen[context.is_recompute] == 1
            return CheckpointPolicy.MUST_SAVE if is_first else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    wrong = gradient(lambda x: checkpoint(forward, x, use_reentrant=False, context_fn=keep_the_first))
    assert not torch.equal(wrong, gradient(forward))
    with pytest.raises(ValueError, match="native_dropout"):
        keeping([torch.ops.aten.native_dropout.default])


def test_a_kept_product_that_is_changed_in_place_is_changed_twice():
    """The trap: torch does not see it behind ``matmul``, and the gradients are wrong; such products are not kept."""

    class Scores(nn.Module):
        def forward(self, x):
            scores = torch.matmul(x, x.transpose(-1, -2))
            scores += 1
            return torch.softmax(scores.square(), -1) @ x

    def gradient(around):
        layer, x = Scores(), torch.linspace(0, 1, 24).reshape(2, 3, 4).requires_grad_()
        if around:
            put_around(layer, [around(layer)])
        layer(x).square().sum().backward()
        return x.grad

    wrong = gradient(lambda layer: Checkpoint(layer, [torch.ops.aten.bmm.default]))
    assert not torch.equal(wrong, gradient(None))
    model = nn.Sequential(Scores())
    seen = Probe(model, []).run((torch.ones(2, 3, 4, requires_grad=True),), {})
    assert seen.changed == {("0", torch.ops.aten.bmm.default)}


def test_an_argument_given_twice_is_one_object_again():
    """The trap: under other hooks attention gets three copies of one tensor and takes another path; ours gets one."""
    attention = nn.MultiheadAttention(16, 2, batch_first=True)
    x = torch.randn(2, 4, 16, requires_grad=True)

    def run(call):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
            call(x).sum().backward()
        gradient, x.grad = x.grad, None
        return gradient

    with pytest.raises(torch.utils.checkpoint.CheckpointError):
        run(lambda x: checkpoint(attention, x, x, x, use_reentrant=False)[0])
    x.grad = None
    ours = run(lambda x: checkpointed(attention, (x, x), {"value": x})[0])
    assert torch.equal(ours, run(lambda x: attention(x, x, x)[0]))


def test_a_copy_of_a_model_trains_with_its_own_weights():
    """The trap: a forward set on an instance makes its copy run the original; ours leaves the copy alone."""
    x, original = torch.ones(1, 4), nn.Linear(4, 4)
    bound = original.forward

    def forward(x):
        return bound(x)

    original.forward = forward
    patched = copy.deepcopy(original)
    nn.init.zeros_(patched.weight)
    nn.init.zeros_(patched.bias)
    assert patched(x).abs().sum() > 0
    del original.forward
    put_around(original, [Checkpoint(original)])
    ours = copy.deepcopy(original)
    nn.init.zeros_(ours.weight)
    nn.init.zeros_(ours.bias)
    assert ours(x).abs().sum() == 0


def test_nothing_of_ours_is_in_what_is_saved():
    """The state, the signature, the attributes and the pickle of a model are what they are without us."""
    training = make("gpt2")
    block = training.model.transformer.h[0]
    before = (set(vars(block)), list(training.model.state_dict()), inspect.signature(block.forward))
    board_of(training.model).set([Choice("transformer.h.*", CHECKPOINT)])
    file = io.BytesIO()
    torch.save(training.model, file)
    after = (set(vars(block)), list(training.model.state_dict()), inspect.signature(block.forward))
    assert after == before
    assert b"autorecompute" not in file.getvalue()


def test_a_class_is_as_it_was_when_nothing_is_on():
    """With nothing on, the forward of every class is the very function that was there."""
    before = [vars(kind).get("forward") for kind in (Sibling, Child, Heir)]
    modules = [Sibling(), Child(), Heir()]
    for module in modules:
        put_around(module, [Checkpoint(module)])
    assert vars(Sibling)["forward"] is not before[0]
    for module in modules:
        release(module)
    assert [vars(kind).get("forward") for kind in (Sibling, Child, Heir)] == before


def test_a_class_is_plain_again_when_its_modules_are_gone():
    """A model that is thrown away while something is on leaves nothing behind."""
    before = vars(Sibling)["forward"]
    module = Sibling()
    put_around(module, [Checkpoint(module)])
    del module
    gc.collect()
    assert vars(Sibling)["forward"] is before


def test_a_call_to_the_parents_forward_is_intercepted_once():
    """A class and its parent may both be intercepted: a module's call goes through ours once."""
    calls = []

    def count(call, module, x):
        calls.append(type(module).__name__)
        return call(x)

    for module in (Sibling(), Child(), Heir()):
        put_around(module, [count])
        module(torch.ones(1, 4))
        Sibling()(torch.ones(1, 4))
        release(module)
    assert calls == ["Sibling", "Child", "Heir"]


def test_a_parameter_changed_before_the_backward_pass_is_told():
    """Made again with other weights the gradients would be wrong without a word."""
    layer = Sibling()
    put_around(layer, [Checkpoint(layer)])
    loss = layer(torch.ones(1, 4, requires_grad=True)).sum()
    with torch.no_grad():
        layer.linear.bias.add_(1)
    with pytest.raises(RuntimeError, match="was changed between"):
        loss.backward()


def test_a_module_is_made_again_in_the_mode_it_was_in():
    """An evaluation between the forward and the backward pass changes nothing."""
    layer = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5))
    x = torch.ones(4, 8, requires_grad=True)

    def gradient(*, on):
        put_around(layer, [Checkpoint(layer)] if on else [])
        torch.manual_seed(0)
        loss = layer(x).square().sum()
        layer.eval()
        loss.backward()
        layer.train()
        found, x.grad = x.grad, None
        return found

    assert torch.equal(gradient(on=True), gradient(on=False))


def test_an_outer_checkpoint_takes_what_lies_inside():
    """Of 3 blocks, the first is checkpointed whole and the MLPs of the other two; equal effects are equal."""
    board = board_of(make("gpt2", layers=3).model)
    effects = board.resolve([Choice("transformer.h.*", CHECKPOINT, 1), Choice("transformer.h.*.mlp", CHECKPOINT)])
    assert sorted(effect.path for effect in effects) == [
        "transformer.h.0",
        "transformer.h.1.mlp",
        "transformer.h.2.mlp",
    ]
    assert board.resolve([Choice("transformer.h.*", CHECKPOINT)]) == board.resolve(
        [Choice("transformer.h.*", CHECKPOINT, 3), Choice("transformer.h.*.mlp", KEEP_MATMUL, 2)]
    )
    overlaps = board.overlaps()
    assert (("transformer.h.*", CHECKPOINT), ("transformer.h.*.mlp", CHECKPOINT)) in overlaps
    assert (("transformer.h.*.mlp", CHECKPOINT), ("transformer.h.*", CHECKPOINT)) not in overlaps


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ([Choice("nowhere", CHECKPOINT)], "no site nowhere"),
        ([Choice("transformer.h.*", "again")], "no option again"),
        ([Choice("transformer.h.*", CHECKPOINT), Choice("transformer.h.*", KEEP_MATMUL)], "two choices"),
    ],
)
def test_senseless_choices_change_nothing(choices, message):
    """What was on stays on where the new choices are refused."""
    model = make("gpt2").model
    board = board_of(model)
    board.set([Choice("transformer.h.*", CHECKPOINT, 1)])
    before = board.effects
    with pytest.raises(ValueError, match=message):
        board.set(choices)
    assert board.effects == before
