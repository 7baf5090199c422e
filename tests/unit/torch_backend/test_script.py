import copy
import io

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache

from autorecompute.backends.torch.controller import script
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from tiny_models import differences, make


@pytest.fixture
def load(monkeypatch):
    """Runs the source of a config; classes that it changes are put back in the end."""

    def run(model, choice):
        for module in model.modules():
            monkeypatch.setattr(type(module), "forward", type(module).forward)
        names = {}
        exec(script(Config.parse([choice]), {"model": name_of(model)}), names)  # noqa: S102  (what a user would import)
        return names

    return run


def saved_bytes(training):
    sizes = {}

    def note(tensor):
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        training.loss(training.model, training.batch)
    return sum(sizes.values())


def assert_saves_and_changes_no_bit(training, load, choice):
    expected, plain = copy.deepcopy(training).gradients(), saved_bytes(training)
    load(training.model, choice)["apply_recompute"](training.model)
    assert differences(training.gradients(), expected) == []
    assert saved_bytes(training) < 0.6 * plain
    return plain


@pytest.mark.parametrize("choice", ["checkpoint:2", "every_2nd"])
@pytest.mark.parametrize(
    ("name", "group"), [("gpt2", "transformer.h.*"), ("bert", "bert.encoder.layer.*"), ("encoder", "encoder.layers.*")]
)
def test_some_blocks_are_checkpointed_and_a_copy_of_the_model_is_a_plain_one(name, group, choice, load):
    training = make(name, layers=3)
    plain = assert_saves_and_changes_no_bit(training, load, f"{group}:{choice}")
    twin = copy.deepcopy(training)
    torch.save(training.model.state_dict(), io.BytesIO())
    assert saved_bytes(twin) == plain


def test_a_cache_is_filled_once_and_what_was_in_it_before_is_not_left_out_without_a_word(load):
    training = make("llama", layers=3)
    training.batch = {**training.batch, "use_cache": True}
    assert_saves_and_changes_no_bit(training, load, "model.layers.*:checkpoint:2")
    samples, filled = len(training.batch["input_ids"]), DynamicCache()
    for layer in range(3):
        filled.update(torch.zeros(samples, 2, 1, 16), torch.zeros(samples, 2, 1, 16), layer)
    with pytest.raises(ValueError, match="an earlier call"):
        training.model(**training.batch, cache=filled)


@pytest.mark.parametrize(
    ("choice", "measured", "used", "message"),
    [
        ("transformer.h.*:checkpoint", ("gpt2",), ("gpt2", 4, 3), "made for another model"),
        ("layer*.*:checkpoint", ("resnet",), ("resnet",), "running statistics"),
        ("elsewhere.*:checkpoint", ("resnet",), ("resnet",), r"has no elsewhere\.\*"),
    ],
)
def test_a_model_that_the_config_is_not_for_is_refused(choice, measured, used, message, load):
    apply_recompute = load(make(*measured).model, choice)["apply_recompute"]
    with pytest.raises(ValueError, match=message):
        apply_recompute(make(*used).model)


@pytest.mark.parametrize(
    "text", ["h.*:keep_matmul", "h.*.mlp/gelu:drop", "h.*.attn/scaled_dot_product_attention:checkpoint"]
)
def test_what_torch_alone_cannot_do_is_named_with_what_to_use_instead(text):
    with pytest.raises(UsageError, match=r"torch alone cannot do h.*autorecompute run"):
        script(Config.parse([text, "other:checkpoint"]), {"model": "Net 1"})


def test_calls_that_are_not_trained_are_plain(load):
    training = make("gpt2")
    load(training.model, "transformer.h.*:checkpoint")["apply_recompute"](training.model)
    with torch.no_grad():
        assert training.loss(training.model.eval(), training.batch).item() > 0


class Named(nn.Module):
    """Called with names alone, with tensors in a tuple among them, as an attention of Transformers is."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, *, hidden, positions):
        return self.dropout(torch.tanh(self.linear(hidden) * positions[0]))


class OfNamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Named(), Named()])

    def forward(self, x):
        for layer in self.layers:
            x = layer(hidden=x, positions=(x.detach(), 1))
        return x.square().sum()


def test_tensors_that_are_given_by_name_are_given_to_checkpoint_by_position(load, monkeypatch):
    """Where none is, torch saves no random numbers of a GPU, and a dropout draws another mask in the recompute."""
    model, seen = OfNamed(), []

    def spy(function, *args, use_reentrant, **named):
        seen.append(([one.shape for one in tree_leaves(args) if torch.is_tensor(one)], named))
        return checkpoint(function, *args, use_reentrant=use_reentrant, **named)

    def gradients():
        torch.manual_seed(1)
        return torch.autograd.grad(model(torch.linspace(0, 1, 16).reshape(2, 8)), list(model.parameters()))

    expected = gradients()
    names = load(model, "layers.*:checkpoint")
    monkeypatch.setitem(names, "checkpoint", spy)
    names["apply_recompute"](model)
    assert all(map(torch.equal, gradients(), expected))
    assert seen == [([(0,), (2, 8), (2, 8)], {})] * 2
