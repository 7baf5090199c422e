"""The source that is given out for a head whose logits are made in chunks."""

import pytest
import torch

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


@pytest.mark.parametrize(
    "way",
    ["view", "flattened", "shifted", "cast", "smoothed", "masked", "softcap", "distilled", "focal", "a hooked view"],
)
def test_the_source_that_is_given_out_trains_alike(model, way):
    loss_of = {**LOSSES, **OTHERS}[way]
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


@pytest.mark.parametrize("way", ["hooked", "written as data", "written", "written through a view", "divided in place"])
def test_the_source_that_is_given_out_refuses_what_it_cannot_follow(model, way):
    emitted()(model)
    with pytest.raises(RuntimeError, match=r"autorecompute\.apply\(model\)"):
        step(model, OTHERS[way])
