"""A model with a vocabulary head, the losses that its logits are made in chunks for, and what else looks at them."""

import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.switch.heads import Head
from autorecompute.backends.torch.switch.intercepting import put_around, release

WORDS, IGNORED = 50, -100
ROWS = (4, 100)  # more than one chunk


class Model(nn.Module):
    """Words to words, with a head that has a bias."""

    def __init__(self, words=WORDS):
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(words, 8), nn.Linear(8, 8), nn.Linear(8, words)

    def forward(self, x):
        return self.head(torch.tanh(self.inner(self.words(x))))


def batch():
    numbers = torch.Generator().manual_seed(1)
    x, y = (torch.randint(0, WORDS, ROWS, generator=numbers) for _ in range(2))
    y[0, :30] = IGNORED
    return x, y


X, Y = batch()
Y_OF_WORDS = Y.clamp(min=0)
WEIGHT = torch.linspace(0.1, 1, WORDS)


class WithLoss(Model):
    """A model that computes its loss, whose head may have a product beside it as LoRA adds one."""

    def __init__(self, words=WORDS, *, adapts=False):
        super().__init__(words)
        self.adapted = nn.Sequential(nn.Linear(8, 2, bias=False), nn.Linear(2, words, bias=False)) if adapts else None

    def forward(self, x, labels=Y):
        hidden = torch.tanh(self.inner(self.words(x)))
        logits = self.head(hidden)
        if self.adapted is not None:
            logits = logits + self.adapted(hidden) * 0.5
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


def flat_loss(logits, labels=Y, **options):
    return functional.cross_entropy(logits.reshape(-1, WORDS), labels.reshape(-1), **options)


def hidden_of(model):
    return torch.tanh(model.inner(model.words(X)))


def plain_logits(model):
    return functional.linear(hidden_of(model), model.head.weight, model.head.bias)


def focal(logits):
    places = Y_OF_WORDS.unsqueeze(-1)
    with torch.no_grad():
        known = logits.log_softmax(-1)
    hardness = (1 - known.gather(-1, places).exp()) ** 2
    return -(hardness * logits.log_softmax(-1).gather(-1, places)).mean()


LOSSES = {
    "view": lambda logits: functional.cross_entropy(logits.view(-1, logits.size(-1)), Y.view(-1)),
    "a module": lambda logits: nn.CrossEntropyLoss()(logits.view(-1, WORDS), Y.view(-1)),
    "transposed": lambda logits: functional.cross_entropy(logits.transpose(1, 2), Y),
    "permuted": lambda logits: functional.cross_entropy(logits.permute(0, 2, 1), Y),
    "flattened": lambda logits: functional.cross_entropy(logits.flatten(0, 1), Y.flatten()),
    "shifted": lambda logits: flat_loss(logits[..., :-1, :].contiguous(), Y[..., 1:]),
    "shifted by two indices": lambda logits: flat_loss(logits[:, :-1], Y[:, 1:]),
    "cast": lambda logits: flat_loss(logits.double()),
    "nll": lambda logits: functional.nll_loss(functional.log_softmax(logits, -1).view(-1, WORDS), Y.view(-1)),
    "nll, transposed": lambda logits: functional.nll_loss(logits.log_softmax(dim=2).transpose(1, 2), Y),
    "smoothed": lambda logits: flat_loss(logits, label_smoothing=0.1),
    "weighed": lambda logits: flat_loss(logits, weight=WEIGHT),
    "weighed and smoothed": lambda logits: flat_loss(logits, weight=WEIGHT, label_smoothing=0.1),
    "a sum": lambda logits: flat_loss(logits, reduction="sum") / 123,
    "masked": lambda logits: (flat_loss(logits, Y_OF_WORDS, reduction="none") * (Y.view(-1) > 10)).mean(),
    "with its accuracy": lambda logits: flat_loss(logits) + 0 * (logits.argmax(-1) == Y).float().mean(),
    "softcap": lambda logits: flat_loss(30 * torch.tanh(logits / 30)),
    "z-loss": lambda logits: flat_loss(logits) + 0.01 * logits.logsumexp(-1).pow(2).mean(),
    "gathered": lambda logits: -logits.log_softmax(-1).gather(-1, Y_OF_WORDS.unsqueeze(-1)).mean(),
    "some rows": lambda logits: functional.cross_entropy(logits[Y != IGNORED], Y[Y != IGNORED]),
    "every second row": lambda logits: functional.cross_entropy(
        logits.view(-1, WORDS)[torch.arange(0, 400, 2)], Y.view(-1)[::2]
    ),
    "in pieces": lambda logits: sum(
        flat_loss(one, other, reduction="sum") for one, other in zip(logits.split(2), Y.split(2), strict=True)
    ),
    "row by row": lambda logits: sum(
        functional.cross_entropy(one, other) for one, other in zip(logits, Y, strict=True)
    ),
    "all words": lambda logits: -logits.log_softmax(-1).mean(-1).mean(),
    "split by a dimension": lambda logits: sum(
        flat_loss(one, other) for one, other in zip(logits.split(50, 1), Y_OF_WORDS.split(50, 1), strict=True)
    ),
    "chunks by a dimension": lambda logits: sum(
        flat_loss(one, other) for one, other in zip(logits.chunk(4, dim=1), Y_OF_WORDS.chunk(4, 1), strict=True)
    ),
    "focal": focal,
    "labels in bytes": lambda logits: flat_loss(logits, Y_OF_WORDS.byte(), ignore_index=10 - 256),
    "labels in bytes, weighed": lambda logits: flat_loss(logits, Y_OF_WORDS.byte(), weight=WEIGHT),
}


class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(_ctx, x):
        return x * 1

    @staticmethod
    def backward(_ctx, gradient):
        return 3 * gradient


def written(logits, where=Ellipsis):
    logits[where] = -1.0
    return flat_loss(logits)


def through_a_view(logits):
    logits.view(-1, WORDS)[:, 0] = -5.0
    return flat_loss(logits)


def seen_in_inference(logits):
    with torch.inference_mode():
        logits.detach().topk(3)
    return flat_loss(logits)


def hooked(logits):
    logits.register_hook(lambda gradient: 2 * gradient)
    return flat_loss(logits)


def written_copy(logits):
    shifted = logits[..., :-1, :].contiguous()
    shifted /= 2
    return flat_loss(shifted, Y[..., 1:]) + 0.1 * logits.logsumexp(-1).mean()


def hooked_view(logits):
    rows = logits[:, :-1]
    rows.register_hook(lambda gradient: 2 * gradient)
    return flat_loss(rows, Y[:, 1:])


def gradient_of_logits(logits):
    apart = logits.detach().requires_grad_()
    flat_loss(apart).backward()
    return (logits * apart.grad).sum()


def without_gradients(logits):
    with torch.no_grad():
        others = logits.softmax(-1)
        rows = logits.float()[:, :-1]
    return flat_loss(logits) + (rows**2).mean() - (others * logits.log_softmax(-1)).sum(-1).mean()


def written_as_data(logits):
    rows = logits.view(-1, WORDS)
    logits.data[..., 0] = -5
    return flat_loss(rows)


def written_by_an_option(logits):
    rows = logits.view(-1, WORDS)
    functional.relu(logits, inplace=True)
    return flat_loss(rows)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(0.5)

    @staticmethod
    def backward(_ctx, gradient):
        return gradient * 0.5


OTHERS = {
    "a function that writes": lambda logits: flat_loss(Halved.apply(logits)),
    "a copy that is written": written_copy,
    "a hooked view": hooked_view,
    "their own gradient": gradient_of_logits,
    "without gradients": without_gradients,
    "written as data": written_as_data,
    "seen in inference mode": seen_in_inference,
    "written by an option": written_by_an_option,
    "soft labels": lambda logits: functional.cross_entropy(
        logits.view(-1, WORDS), WEIGHT.softmax(0).expand(400, WORDS)
    ),
    "distilled": lambda logits: functional.kl_div(
        logits.log_softmax(-1), WEIGHT.softmax(0).expand(*ROWS, WORDS), reduction="batchmean"
    ),
    "a loss and a penalty": lambda logits: flat_loss(logits) + logits.pow(2).mean(),
    "concatenated": lambda logits: flat_loss(torch.cat([logits, logits]), torch.cat([Y, Y])),
    "the largest": lambda logits: logits.max(-1).values.mean(),
    "divided in place": lambda logits: flat_loss(logits.div_(2)),
    "written": lambda logits: written(logits, (slice(None), slice(None), 0)),
    "written through a view": through_a_view,
    "hooked": hooked,
    "a function of its own": lambda logits: Tripled.apply(logits).pow(2).mean(),
}


def step(model, loss_of):
    loss = loss_of(model(X))
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    return loss.detach(), gradients


def both(model, loss_of):
    """A step without chunks, and one with them; how often logits were made in it."""
    plain = step(model, loss_of)
    head = Head("head")
    put_around(model.head, [head])
    chunked = step(model, loss_of)
    release(model.head)
    return plain, chunked, head.made


def assert_close(plain, chunked, tolerance=5e-6):
    torch.testing.assert_close(chunked[0], plain[0], rtol=1e-5, atol=1e-7)
    for name, one in plain[1].items():
        assert (chunked[1][name] - one).abs().max() <= tolerance * one.abs().max(), name
