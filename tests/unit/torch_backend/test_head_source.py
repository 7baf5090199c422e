"""The source that is given out for a head whose logits are made in chunks."""

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.controller import script
from autorecompute.plans import Choice, Config
from stand_ins.vocabulary import LOSSES, OTHERS, WORDS, Model, X, assert_close, flat_loss, step


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


def emitted():
    """The function of the source that is given out."""
    given = {}
    exec(script(Config(frozenset([Choice("head/cross_entropy", "chunk")])), {"model": "Model"}), given)  # noqa: S102
    return given["apply_recompute"]


IN_CHUNKS = frozenset(
    {"view", "a module", "flattened", "shifted", "shifted by two indices", "cast", "smoothed", "weighed"}
    | {"weighed and smoothed", "a sum", "masked", "some rows", "every second row", "labels in bytes"}
    | {"labels in bytes, weighed"}
)


@pytest.mark.parametrize("way", [*LOSSES, "distilled"])
def test_the_source_that_is_given_out_trains_alike_and_tells_where_logits_are_whole(model, way):
    loss_of = {**LOSSES, **OTHERS}[way]
    plain = step(model, loss_of)
    emitted()(model)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert_close(plain, step(model, loss_of))
    assert any("logits are made whole" in str(one.message) for one in told) == (way not in IN_CHUNKS)


def test_the_source_that_is_given_out_leaves_doubles_alone_under_autocast(model):
    model.double()
    with torch.autocast("cpu", torch.bfloat16):
        plain = step(model, LOSSES["view"])
        emitted()(model)
        assert_close(plain, step(model, LOSSES["view"]), tolerance=1e-12)


def test_the_source_that_is_given_out_bears_a_loss_that_is_checkpointed(model):
    def loss_of(logits):
        return checkpoint(LOSSES["view"], logits, use_reentrant=False)

    plain = step(model, loss_of)
    emitted()(model)
    assert_close(plain, step(model, loss_of))


def test_the_source_that_is_given_out_adds_chunks_up_in_more_than_16_bits(model):
    x, y = torch.randint(0, WORDS, (2, 16_384))
    exact, errors = None, []
    for apply in (None, None, emitted()):
        if apply is not None:
            apply(model)
        with torch.autocast("cpu", torch.bfloat16, enabled=exact is not None):
            flat_loss(model(x), y).backward()
        gradient, model.head.weight.grad = model.head.weight.grad, None
        exact = gradient if exact is None else exact
        errors.append(float((gradient - exact).norm() / exact.norm()))
    assert errors[2] < 1.5 * errors[1], errors


def test_the_source_that_is_given_out_refuses_gradients_of_gradients(model):
    emitted()(model)
    with pytest.raises(RuntimeError, match="create_graph=True"):
        torch.autograd.grad(flat_loss(model(X)), model.head.weight, create_graph=True)


@pytest.mark.parametrize(
    "way", ["hooked", "a hooked view", "written as data", "written", "written through a view", "divided in place"]
)
def test_the_source_that_is_given_out_refuses_what_it_cannot_follow(model, way):
    emitted()(model)
    with pytest.raises(RuntimeError, match=r"autorecompute\.apply\(model\)"):
        step(model, OTHERS[way])
