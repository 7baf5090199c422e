"""A config given out as a file that imports torch alone."""

import copy
import io

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.script import write_script
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from tiny_models import call_of, differences, make


@pytest.fixture
def load(monkeypatch):
    """Runs the source; classes that it changes are put back in the end."""

    def run(config, model):
        for module in model.modules():
            monkeypatch.setattr(type(module), "forward", type(module).forward)
        names = {}
        exec(write_script(config, name_of(model)), names)  # noqa: S102  (what a user would import)
        return names

    return run


def saved_bytes(training):
    """What a forward pass keeps."""
    sizes = {}

    def note(tensor):
        sizes[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        training.loss(training.model, training.batch)
    return sum(sizes.values())


@pytest.mark.parametrize("choice", ["checkpoint:2", "every_2nd"])
@pytest.mark.parametrize("name", ["gpt2", "bert", "encoder"])
def test_some_blocks_are_checkpointed_and_no_bit_changes(name, choice, load):
    """As many as the config says, with dropout on; a copy of the model is a plain one."""
    training = make(name, layers=3)
    group = {"gpt2": "transformer.h.*", "bert": "bert.encoder.layer.*", "encoder": "encoder.layers.*"}[name]
    expected, plain = copy.deepcopy(training).gradients(), saved_bytes(training)
    source = load(Config.parse([f"{group}:{choice}"]), training.model)
    source["apply_recompute"](training.model)
    assert differences(training.gradients(), expected) == []
    assert saved_bytes(training) < 0.6 * plain
    twin = copy.deepcopy(training)
    torch.save(training.model.state_dict(), io.BytesIO())
    assert saved_bytes(twin) == plain


def test_a_cache_is_filled_once(load):
    """A Llama makes one by default; what was in it before is not left out without a word."""
    from transformers import DynamicCache

    training = make("llama", layers=3)
    training.batch = {**training.batch, "use_cache": True}
    expected, plain = copy.deepcopy(training).gradients(), saved_bytes(training)
    source = load(Config.parse(["model.layers.*:checkpoint:2"]), training.model)
    source["apply_recompute"](training.model)
    assert differences(training.gradients(), expected) == []
    assert saved_bytes(training) < 0.6 * plain
    samples, filled = len(training.batch["input_ids"]), DynamicCache()
    for layer in range(3):
        filled.update(torch.zeros(samples, 2, 1, 16), torch.zeros(samples, 2, 1, 16), layer)
    with pytest.raises(ValueError, match="an earlier call"):
        training.model(**training.batch, past_key_values=filled)


def test_the_name_of_a_model_is_the_same_there(load):
    """Or the file would refuse what it was measured on."""
    training = make("llama")
    assert load(Config(), training.model)["name_of"](training.model) == name_of(training.model)


def test_another_model_is_refused(load):
    """With both names; and so is one whose running statistics would be updated twice."""
    source = load(Config.parse(["transformer.h.*:checkpoint"]), make("gpt2").model)
    with pytest.raises(ValueError, match="made for another model"):
        source["apply_recompute"](make("gpt2", layers=3).model)
    model = make("resnet").model
    with pytest.raises(ValueError, match="running statistics"):
        load(Config.parse(["layer*.*:checkpoint"]), model)["apply_recompute"](model)
    with pytest.raises(ValueError, match=r"has no elsewhere\.\*"):
        load(Config.parse(["elsewhere.*:checkpoint"]), model)["apply_recompute"](model)


@pytest.mark.parametrize(
    "text", ["h.*:keep_matmul", "h.*.mlp/gelu:drop", "h.*.attn/scaled_dot_product_attention:checkpoint"]
)
def test_what_torch_alone_cannot_do_is_named(text):
    """And what to use instead."""
    with pytest.raises(UsageError, match=r"torch alone cannot do h.*autorecompute run"):
        write_script(Config.parse([text, "other:checkpoint"]), "Net 1")


def test_calls_that_are_not_trained_are_plain(load):
    """Under no_grad nothing is run through a checkpoint."""
    training = make("gpt2")
    load(Config.parse(["transformer.h.*:checkpoint"]), training.model)["apply_recompute"](training.model)
    args, kwargs = call_of(training)
    training.model.eval()
    with torch.no_grad():
        assert training.model(*args, **kwargs).loss.item() > 0


class Named(nn.Module):
    """Called with names alone, with tensors in a tuple among them, as an attention of Transformers is."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(8, 8), nn.Dropout(0.5)

    def forward(self, *, hidden, positions):
        """A product with dropout."""
        return self.dropout(torch.tanh(self.linear(hidden) * positions[0]))


class OfNamed(nn.Module):
    """Two of them."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Named(), Named()])

    def forward(self, x):
        """One after the other."""
        for layer in self.layers:
            x = layer(hidden=x, positions=(x.detach(), 1))
        return x.square().sum()


def test_tensors_that_are_given_by_name_are_given_to_checkpoint_by_position(load, monkeypatch):
    """Where none is, torch saves no random numbers of a GPU, and a dropout draws another mask in the recompute."""
    torch.manual_seed(0)
    model, seen = OfNamed(), []

    def spy(function, *args, use_reentrant, **named):
        seen.append((args, named))
        return checkpoint(function, *args, use_reentrant=use_reentrant, **named)

    def gradients():
        model.zero_grad()
        torch.manual_seed(1)
        model(torch.linspace(0, 1, 16).reshape(2, 8)).backward()
        return {name: one.grad.clone() for name, one in model.named_parameters()}

    expected = gradients()
    names = load(Config.parse(["layers.*:checkpoint"]), model)
    monkeypatch.setitem(names, "checkpoint", spy)
    names["apply_recompute"](model)
    assert differences(gradients(), expected) == []
    assert [[tuple(one.shape) for one in tree_leaves(args) if torch.is_tensor(one)] for args, _ in seen] == [
        [(0,), (2, 8), (2, 8)]
    ] * 2
    assert [named for _, named in seen] == [{}, {}]
