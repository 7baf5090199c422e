"""Trainings of blocks that are hard to run again, each after a public report: for ``harmless_plans.py``.

Each is written anew, and made harder where the report left room. A docstring begins with the report.
"""

from __future__ import annotations

import dataclasses
import random
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver, disable_observer
from torch.nn import functional
from torch.nn.utils import parametrizations, rnn

WIDTH, BATCH, STEPS, LAYERS = 8, 6, 18, 3
LATE, LATER = 6, 12
"""Steps in which something changes."""


class Two(nn.Module):
    """A block of two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)


class Residual(Two):
    """The plainest block."""

    def forward(self, x):
        return x + self.second(functional.gelu(self.first(x)))


class Normed(Two):
    """A block with a norm over the batch."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, momentum=None)

    def forward(self, x):
        return x + self.second(functional.silu(self.norm(self.first(x))))


class Layers(nn.Module):
    """Blocks that are called in turn, with arguments beside what goes from one to the next."""

    def __init__(self, *blocks):
        super().__init__()
        self.layers = nn.ModuleList(blocks)

    def forward(self, x, *args, **kwargs):
        for layer in self.layers:
            x = layer(x, *args, **kwargs)
        return x


class Case:
    """A training; what it does beyond the plainest one stands in its class."""

    Block: Any = Residual
    Model: Any = nn.Sequential

    def model(self):
        """Make the model."""
        return self.Model(*(self.Block() for _ in range(LAYERS)))

    def batch(self, step):
        """Make the batch of a step."""
        return torch.randn(BATCH, WIDTH)

    def optimizer(self, model):
        """Make what trains the model."""
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def before(self, model, step):
        """Change the model before a step."""

    def loss(self, model, x, step):
        """Run the model."""
        return model(x).square().mean()

    def step(self, model, optimizer, step):
        """Train for a step, and return its loss."""
        loss = self.loss(model, self.batch(step), step)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    def train(self, model):
        """Train, and return the losses."""
        optimizer, losses = self.optimizer(model), []
        for step in range(STEPS):
            self.before(model, step)
            losses.append(self.step(model, optimizer, step))
        return losses

    def state(self):
        """Return what is compared beside losses, weights, buffers and random numbers."""
        return []


class UninitializedNoise(Case):
    """pytorch#193671: RReLU fills in its noise after its node has saved it."""

    @staticmethod
    def Block():
        return nn.Sequential(nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH), nn.RReLU(0.1, 0.9))


class FrozenNorms(Case):
    """pytorch#96136: a cumulative average of statistics stops with eval() and goes on; epsilon is scheduled."""

    Block = Normed

    def before(self, model, step):
        for block in model:
            block.norm.eps = 1e-5 * (1 + step // 4)
            if step in {LATE, LATER}:
                block.norm.train(step == LATER).bias.requires_grad_(step == LATER)


class Codebook(Case):
    """vector-quantize-pytorch#68: a codebook begins with the first batch, is written past autograd, and is frozen."""

    class Block(Two):
        is_frozen = False

        def __init__(self):
            super().__init__()
            self.register_buffer("codes", torch.zeros(5, WIDTH))
            self.register_buffer("sizes", torch.zeros(5))
            self.register_buffer("is_begun", torch.tensor([False]))

        def choose(self, flat):
            if not self.is_begun:
                self.codes.data.copy_(flat[torch.randperm(len(flat))[:5]])
                self.is_begun.data.fill_(True)
            return torch.cdist(flat, self.codes).argmin(1)

        def write(self, flat, chosen):
            kinds = functional.one_hot(chosen, 5).type_as(flat)
            self.sizes.data.mul_(0.8).add_(kinds.sum(0), alpha=0.2)
            self.codes.data.lerp_((kinds.T @ flat) / kinds.sum(0).clamp(min=1)[:, None], 0.3)
            dead = self.sizes < 0.1
            if dead.any():
                self.codes.data[dead] = flat[torch.randint(len(flat), (int(dead.sum()),))]

        def forward(self, x):
            h = torch.tanh(self.first(x))
            chosen = self.choose(h.detach())
            quantized = self.codes[chosen]
            if not self.is_frozen:
                self.write(h.detach(), chosen)
            return x + self.second(torch.sigmoid(h + (quantized - h).detach()))

    def before(self, model, step):
        for block in model:
            block.is_frozen = LATE <= step < LATER


class Observers(Case):
    """pytorch#26420: ranges are observed; quantization begins in a later step, and observation ends in another."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.fake = FakeQuantize(MovingAverageMinMaxObserver, quant_min=0, quant_max=255)

        def forward(self, x):
            return x + self.second(self.fake(functional.gelu(self.first(x))))

    def before(self, model, step):
        for block in model:
            block.fake.enable_fake_quant(step >= 3)
            if step == LATER:
                disable_observer(block.fake)


class Experts(Case):
    """transformers#47467: experts are called in a loop over those that were hit, with noise on the router."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, 4), nn.ModuleList(Residual() for _ in range(4))

        def forward(self, x):
            scores = self.router(x * torch.empty_like(x).uniform_(0.9, 1.1)).softmax(-1)
            weights, chosen = scores.topk(2)
            weights, result = weights / weights.sum(-1, keepdim=True), torch.zeros_like(x)
            for one in chosen.unique().tolist():
                token, place = (chosen == one).nonzero(as_tuple=True)
                result.index_add_(0, token, self.experts[one](x[token]) * weights[token, place, None])
            return x + result


class Capacity(Case):
    """Automodel#3247: a gate counts its load from None on, drops tokens above a capacity, and is balanced by a bias."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.gate, self.load = nn.Linear(WIDTH, 2), None
            self.register_buffer("bias", torch.zeros(2))

        def forward(self, x):
            scores = self.gate(x).sigmoid()
            chosen = (scores + self.bias).argmax(-1)
            kinds = functional.one_hot(chosen, 2)
            if self.load is None:
                self.load = kinds.sum(0).float()
            else:
                self.load += kinds.sum(0)
            kept = (kinds.cumsum(0) * kinds).sum(-1) <= 3
            mixed = torch.where((chosen == 0)[:, None], torch.tanh(self.first(x)), functional.silu(self.second(x)))
            return x + mixed * scores.gather(1, chosen[:, None]) * kept[:, None]

    def before(self, model, step):
        for block in model:
            if block.load is not None and step % 4 == 0:
                block.bias += 0.1 * (block.load.mean() - block.load).sign()
                block.load = None


class LayersDropped(Case):
    """transformers#30113: whole layers are left out at random, by NumPy's numbers, and lengths differ."""

    class Model(Layers):
        def forward(self, x):
            for layer in self.layers:
                x = layer(x) if np.random.uniform() > 0.3 else x
            return x

    @staticmethod
    def Block():
        return nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True)

    def batch(self, step):
        return torch.randn(2, 3 + step % 4, WIDTH)


class PathsDropped(Case):
    """vision#4298: rows of a branch are left out by a generator of the class, and a new one takes its place."""

    class Block(Two):
        generator = torch.Generator()

        def forward(self, x):
            noise = torch.empty(len(x), 1).bernoulli_(0.7, generator=type(self).generator).div_(0.7)
            return x + self.second(functional.gelu(self.first(x)) * noise)

    def before(self, model, step):
        if step % LATE == 0:
            self.Block.generator = torch.Generator().manual_seed(3 + step)


class DropoutScheduled(Case):
    """OLMo-core#828: dropout is scheduled from none to all, and Python's numbers choose between branches."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.drop, self.inner = nn.Dropout(0.0), nn.Dropout(0.1)

        def forward(self, x):
            h = self.drop(functional.gelu(self.first(x)))
            if random.random() < 0.5:
                h = self.inner(h) * random.choice((0.5, 2.0))
            return x + self.inner(self.second(h))

    def before(self, model, step):
        for block in model:
            block.drop.p = (0.0, 0.3, 1.0)[step // LATE]


class SpectralTwice(Case):
    """pytorch#62293: power iterations in each of two calls, by the parametrization and by the old hook."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH))
            self.second = nn.utils.spectral_norm(nn.Linear(WIDTH, WIDTH))

        def forward(self, x):
            return x + self.second(functional.leaky_relu(self.first(x), 0.2))

    def loss(self, model, x, step):
        return functional.softplus(model(x)).mean() + functional.softplus(-model(x + 1)).mean()


class RecurrentNorms(Case):
    """pytorch#2515: recurrent layers whose weights are normalized by a hook, over packed sequences."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", FutureWarning)
                self.gru = nn.utils.weight_norm(nn.GRU(WIDTH, WIDTH, batch_first=True), "weight_hh_l0")
            self.lstm = nn.LSTM(WIDTH, 4, bidirectional=True, batch_first=True)

        def forward(self, x):
            lengths, h = torch.arange(1, len(x) + 1), self.gru(x)[0]
            packed = rnn.pack_padded_sequence(h, lengths, batch_first=True, enforce_sorted=False)
            h = rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]
            return x + torch.tanh(h)

    def batch(self, step):
        return torch.randn(4, 4 + step % 3, WIDTH)


class DictionaryWritten(Case):
    """pytorch#178568: a dictionary goes from block to block, and each writes into it."""

    class Block(Two):
        def forward(self, state):
            state["depth"] = state.get("depth", 0) + 1
            state["x"] = state["x"] + self.second(torch.tanh(self.first(state["x"]) / state["depth"]))
            state["trace"].append(state["x"])
            return state

    class Model(Layers):
        def forward(self, x):
            return torch.stack(super().forward({"x": x, "trace": []})["trace"]).mean(0)


@dataclasses.dataclass
class Output:
    """What a layer is given and returns."""

    x: torch.Tensor
    mask: torch.Tensor | None = None
    parts: list[torch.Tensor] = dataclasses.field(default_factory=list)


class DataclassReturned(Case):
    """pytorch#124725: dataclasses with lists and None go in and out, and are built on."""

    class Block(Two):
        def forward(self, given, *, mask=None):
            h = torch.tanh(self.first(given.x))
            h = h if mask is None else h.masked_fill(mask, 0.0)
            return Output(given.x + self.second(h), mask, [*given.parts, h.chunk(2, -1)[1]])

    class Model(Layers):
        def forward(self, x):
            given = Output(x)
            for place, layer in enumerate(self.layers):
                given = layer(given, mask=x > 0.5 if place % 2 else None)
            return given.x + torch.cat(given.parts[:2], -1)


class ViewsInPlace(Case):
    """pytorch#36383: views are changed in place, and parts of one tensor."""

    class Block(Two):
        def forward(self, x):
            h = self.first(x)
            h[:, :4].relu_()
            one, other = h.clone()[:, :4], h[:, 4:]
            one.mul_(torch.sigmoid(other))
            wide = one.unsqueeze(1).expand(-1, 2, -1) * torch.tanh(other).unsqueeze(1)
            return (x + self.second(wide.reshape(len(x), -1)))[:].tanh_()


class Squared(torch.autograd.Function):
    """Saves what goes in and out, and keeps a tensor and a number beside."""

    @staticmethod
    def forward(ctx, x, scale, power):
        y, root = x * x.abs() * scale, x.abs().sqrt()
        ctx.save_for_backward(x, y, root)
        ctx.mask, ctx.power = x > 0, power
        ctx.mark_non_differentiable(root)
        return y, root

    @staticmethod
    def backward(ctx, gradient, _):
        _, y, root = ctx.saved_tensors
        return gradient * (2 * root.square() + 0.1 * ctx.mask * ctx.power), (gradient * y).sum().reshape(1), None


class OwnFunctions(Case):
    """pytorch#161186: a function of the script's own saves its results, at a block's end."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, x):
            y, root = Squared.apply(self.second(torch.tanh(self.first(x))), self.scale, 2)
            return Squared.apply(torch.tanh(x + y * 0.1) + root.detach() * 0.01, self.scale, 1)[0]


class Rotated(Case):
    """torchtitan#3458: positions are rotations by complex numbers, in double precision, of several lengths."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            angles = torch.outer(torch.arange(12.0), torch.tensor([1.0, 0.1, 0.01, 0.001])).double()
            self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles), persistent=False)

        def forward(self, x):
            h = torch.view_as_complex(self.first(x).unflatten(-1, (-1, 2)).contiguous()) * self.turns[: x.shape[1]]
            h = torch.tanh(h) * h.conj()
            scores = (torch.view_as_real(h).flatten(-2) @ x.mT).softmax(-1)
            return x + self.second(scores @ x)

    def model(self):
        return super().model().double()

    def batch(self, step):
        return torch.randn(2, 3 + step % 7, WIDTH, dtype=torch.float64)


class StateKept(Case):
    """transformers#43203: a layer keeps its state between calls, with its graph for two calls of a step."""

    class Block(Two):
        state = None

        def forward(self, x):
            h = self.first(x)
            self.state = torch.tanh(h if self.state is None else h + 0.5 * self.state)
            return x + self.second(self.state)

    def loss(self, model, x, step):
        for block in model:
            block.state = None if step % 3 == 0 or block.state is None else block.state.detach()
        return model(x).square().mean() + model(x.flip(0)).square().mean()


class KeysOfAList(Case):
    """transformers#46572: layers append their keys and values to a list that a later layer reads."""

    class Block(Two):
        def forward(self, x, cache):
            h = self.first(x)
            past = torch.cat([*cache, h], 1) if cache else h
            cache.append(torch.tanh(h))
            return x + self.second((h @ past.mT).softmax(-1) @ past)

    class Model(Layers):
        def forward(self, x):
            cache: list[torch.Tensor] = []
            return super().forward(x, cache) + cache[-1]

    def batch(self, step):
        return torch.randn(2, 3 + step % 2, WIDTH)
