"""A loss of the whole batch is told from a sum or a mean over samples, as the script or the model computes it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.find.batch_losses import MOST_BYTES, Results

SAMPLES, WIDTH = 6, 4
LABELS = torch.arange(SAMPLES) % WIDTH


def of_pairs(found):
    first, second = functional.normalize(found), functional.normalize(found.roll(1, -1))
    return functional.cross_entropy(first @ second.T * 3, torch.arange(len(found)))


def spread(found):
    return functional.relu(1 - found.std(0)).mean()


def of_tokens(found):
    words = found.view(SAMPLES, 2, 2)
    labels = torch.tensor([[0, 1], [1, -100], [-100, -100], [1, 1], [0, -100], [1, 0]])
    return functional.cross_entropy(words.transpose(1, 2), labels)


def of_preferences(found):
    chosen, rejected = found.sum(1).chunk(2)
    return -functional.logsigmoid(chosen - rejected).mean()


BY_SAMPLE = {
    "pairs": of_preferences,
    "mean": lambda found: functional.cross_entropy(found, LABELS),
    "sum": lambda found: functional.cross_entropy(found, LABELS, reduction="sum"),
    "smoothed": lambda found: functional.cross_entropy(found, LABELS, label_smoothing=0.1, weight=torch.rand(WIDTH)),
    "padded tokens": of_tokens,
    "squares": lambda found: found.square().mean(),
    "linear": lambda found: found.mean(),
    "masked": lambda found: (functional.cross_entropy(found, LABELS, reduction="none") * (LABELS > 1)).sum() / 3,
}
OF_THE_BATCH = {"contrastive": of_pairs, "variance": spread, "largest": lambda found: found.logsumexp(0).sum()}


class Wrapped(nn.Module):
    """A model that returns its loss alone."""

    def __init__(self, loss):
        super().__init__()
        self.inner, self.outer, self.loss = nn.Linear(WIDTH, 8), nn.Linear(8, WIDTH), loss

    def forward(self, x):
        return self.loss(self.outer(self.inner(x).tanh()))


@pytest.mark.parametrize("is_inside", [False, True], ids=["script", "model"])
@pytest.mark.parametrize(
    ("loss", "is_mixed"),
    [*((one, False) for one in BY_SAMPLE.values()), *((one, True) for one in OF_THE_BATCH.values())],
    ids=[*BY_SAMPLE, *OF_THE_BATCH],
)
def test_a_loss_of_the_whole_batch_is_told(loss, is_mixed, is_inside):
    torch.manual_seed(0)
    model = Wrapped(loss if is_inside else nn.Identity())
    results = Results()
    results.follow([model])
    found = model(torch.randn(SAMPLES, WIDTH))
    results.note(found)
    loss = found if is_inside else loss(found)
    assert results.are_mixed_by(loss) == is_mixed
    loss.backward()
    assert all(one.grad is not None for one in model.parameters()), "the training goes on"
    assert not results.are_mixed_by(model(torch.randn(SAMPLES, WIDTH)).sum()), "one loss is looked at"


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, found):
        ctx.save_for_backward(found)
        return found.logsumexp(0).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        (found,) = ctx.saved_tensors
        return gradient * found.softmax(0)


@pytest.mark.parametrize(
    ("found", "loss"),
    [
        (torch.randn(SAMPLES, WIDTH), Once.apply),
        (torch.randn(1, WIDTH), of_pairs),
        (torch.empty(2, MOST_BYTES // 4), lambda found: found.logsumexp(0).sum()),
    ],
    ids=["once differentiable", "one sample", "large"],
)
def test_where_nobody_can_tell_a_loss_is_taken_for_one_of_samples(found, loss):
    model, results = nn.Sequential(nn.Identity()), Results()
    results.follow([model])
    found = model(found.requires_grad_() * 1)
    results.note(found)
    assert not results.are_mixed_by(loss(found))
