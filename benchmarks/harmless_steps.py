"""Trainings whose steps are unlike the plainest one, each after a public report: for ``harmless_plans.py``."""

from __future__ import annotations

import contextlib
import copy

import torch
from harmless_cases import BATCH, LATE, LATER, LAYERS, STEPS, WIDTH, Case, Layers, Normed, Residual, Two
from torch import nn
from torch.nn import functional
from torch.nn.utils import prune


class SharedHooks(Case):
    """pytorch#81296: hooks on a weight of two layers, and on what a block returns."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.second.weight, self.calls = self.first.weight, [0]

        def forward(self, x):
            h = self.second(torch.tanh(self.first(x)))
            h.register_hook(self.scale)
            return x + h

        def scale(self, gradient):
            self.calls[0] += 1
            return gradient * 1.5

    def model(self):
        self.blocks, self.seen = super().model(), []
        for block in self.blocks:
            block.first.weight.register_hook(lambda gradient: gradient.clamp(-0.1, 0.1))
            block.first.weight.register_post_accumulate_grad_hook(lambda one: self.seen.append(one.grad.sum().item()))
        return self.blocks

    def state(self):
        return [self.seen, [block.calls for block in self.blocks]]


class GradientInside(Case):
    """pytorch#102223: forces are gradients that the forward takes, to be trained."""

    class Model(nn.Sequential):
        def forward(self, x):
            x = x.requires_grad_(True)
            return torch.autograd.grad(super().forward(x).square().sum(), x, create_graph=True)[0]


class RetainedGraph(Case):
    """guided-diffusion#144: the graph is gone through three times, for a weight between two losses."""

    def step(self, model, optimizer, step):
        y = model(self.batch(step))
        one, other, last = y.square().mean(), y.abs().mean(), model[-1].second.weight
        first, second = (torch.autograd.grad(loss, last, retain_graph=True)[0].norm() for loss in (one, other))
        loss = one + other * (first / (second + 1e-4)).clamp(0, 10).detach()
        loss.backward(retain_graph=step % 2 == 0)
        if step % 2 == 0:
            y.mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()


class GradientPenalty(Case):
    """pytorch#33999: mixed derivatives, of weights and of what goes in, in some of the steps."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            return x + self.second(functional.gelu(self.first(self.norm(x))))

    def loss(self, model, x, step):
        y = model(x.requires_grad_(True))
        if step % 3 == 1:
            return y.mean()
        gradient = torch.autograd.grad(y.sum(), x, create_graph=True)[0]
        return y.mean() + 10 * (gradient.norm(dim=1) - 1).square().mean()


class Adapters(Case):
    """peft#1142: adapters on frozen layers, which are merged into them for an evaluation and taken out again."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
            self.down, self.up = nn.Linear(WIDTH, 2, bias=False), nn.Linear(2, WIDTH, bias=False)
            self.is_merged, self.drop = False, nn.Dropout(0.1)

        def forward(self, x):
            h = self.base(x)
            return x + torch.tanh(h if self.is_merged else h + self.up(self.drop(self.down(x))))

        def merge(self, sign):
            self.base.weight.data += sign * self.up.weight @ self.down.weight
            self.is_merged = sign > 0

    def loss(self, model, x, step):
        if step in {LATE, LATER}:
            for block in model:
                block.merge(1)
            x = x + model.eval()(x).sum().item() * 1e-3
            for block in model.train():
                block.merge(-1)
        return super().loss(model, x, step)


class CastWithoutGradients(Case):
    """pytorch#112583: weights are cast without gradients in one call, and another one finds the casts."""

    def loss(self, model, x, step):
        with torch.autocast("cpu", torch.bfloat16):
            first = model(x)
            if step % 2 == 0:
                return first.float().square().mean()
            with torch.no_grad():
                goal = model(x + 1)
            return (model(x.flip(0)) - goal).float().square().mean() + first.float().mean()


class NestedCasts(Case):
    """pytorch#141896: autocast is off inside of a block, two calls share its cache, and its type changes."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x):
            with torch.autocast("cpu", enabled=False):
                h = self.norm(x.float())
            return x + self.second(functional.gelu(self.first(h)).softmax(-1))

    def loss(self, model, x, step):
        kind = torch.float16 if step >= LATER else torch.bfloat16
        with torch.autocast("cpu", kind, enabled=not LATE <= step < LATE + 2):
            return (model(x) - model(x.flip(0)) * 0.5).float().square().mean()


class TwoViews(Case):
    """SimSiam#1: calls with statistics of their own in a step, and a teacher that is an average of the student."""

    Block = Normed

    def model(self):
        model = super().model()
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        return model

    def loss(self, model, x, step):
        one, other = (x + torch.randn_like(x) * 0.1 for _ in range(2))
        loss = -functional.cosine_similarity(model(one), self.teacher(other)).mean()
        loss = loss - functional.cosine_similarity(model(other), model(one).detach()).mean()
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
        return loss

    def state(self):
        return list(self.teacher.state_dict().values())


class HooksWithEffects(Case):
    """pytorch#134310: hooks collect what layers return for the loss, count, and are removed in a later step."""

    def model(self):
        model, self.found, self.counts = super().model(), [], {}
        self.hooks = [block.first.register_forward_hook(self.collect) for block in model]
        self.hooks += [block.register_forward_pre_hook(lambda module, args: (args[0] * 1.1,)) for block in model]
        return model

    def collect(self, module, _args, y):
        self.counts[module] = self.counts.get(module, 0) + 1
        self.found.append(y)
        return y * (1 + 0.1 * self.counts[module])

    def loss(self, model, x, step):
        loss = super().loss(model, x, step) + sum(y.abs().mean() for y in self.found)
        self.found.clear()
        if step == LATER:
            self.hooks.pop().remove()
            self.hooks.pop(0).remove()
        return loss

    def state(self):
        return [list(self.counts.values())]


class Thawing(Case):
    """pytorch-lightning#450: a frozen backbone is trained from a step on, in a new group, and frozen again."""

    Block = GradientPenalty.Block

    def model(self):
        model = super().model()
        model[:-1].requires_grad_(False)
        return model

    def optimizer(self, model):
        self.one = torch.optim.AdamW(model[-1].parameters(), lr=0.01)
        return self.one

    def before(self, model, step):
        if step in {LATE, LATER}:
            model[:-1].requires_grad_(step == LATE)
        if step == LATE:
            self.one.add_param_group({"params": model[:-1].parameters(), "lr": 0.02})


class Averages(Case):
    """swa#15: averages of the model are evaluated and loaded back while it trains, and another optimizer follows."""

    Block = Normed

    def train(self, model):
        average, losses, optimizer = torch.optim.swa_utils.AveragedModel(model), [], self.optimizer(model)
        for step in range(STEPS):
            losses.append(self.step(model, optimizer, step))
            average.update_parameters(model)
            if step == LATE:
                torch.optim.swa_utils.update_bn([torch.randn(BATCH, WIDTH) for _ in range(2)], average)
                losses.append(average(torch.ones(BATCH, WIDTH)).sum().item())
            if step == LATER:
                model.load_state_dict(average.module.state_dict())
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        return losses


class EvaluatedModes(Case):
    """diffusers#9850: a model trains on in eval(), a block of it not, with gradients clipped."""

    class Block(Normed):
        def __init__(self):
            super().__init__()
            self.drop = nn.Dropout(0.2)

        def forward(self, x):
            h = self.drop(functional.gelu(self.norm(self.first(x))))
            return x + self.second(h if self.training else h * 0.9)

    def before(self, model, step):
        model.train(step < LATE)
        model[1].train(step < LATE or step >= LATER)

    def step(self, model, optimizer, step):
        loss = self.loss(model, self.batch(step), step)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        return loss.item() + norm.item()


class AccumulatedLengths(Case):
    """transformers#35203: gradients of batches of several lengths are accumulated, some in one backward pass."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=True)
            self.norm = nn.LayerNorm(WIDTH)

        def forward(self, x, lengths):
            padding = torch.arange(x.shape[1]) >= lengths[:, None]
            h = self.norm(x)
            x = x + self.attention(h, h, h, key_padding_mask=padding, need_weights=False)[0]
            return x + self.second(functional.gelu(self.first(x)))

    Model = Layers

    def step(self, model, optimizer, step):
        sizes = [(3 + step % 2, length) for length in (5, 8, 2 + step)]
        parts = [model(torch.randn(*size, WIDTH), torch.randint(1, size[1] + 1, size[:1])) for size in sizes]
        losses = [part.square().sum() / sum(one.numel() for one in parts) for part in parts]
        for loss in [sum(losses)] if step % 2 else reversed(losses):
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return sum(loss.item() for loss in losses)


class OtherWeights(Case):
    """pytorch#86708: a call with fast weights by functional_call, some of which are tied, and one with its own."""

    class Block(Residual):
        def __init__(self):
            super().__init__()
            self.second.weight = self.first.weight

    def loss(self, model, x, step):
        weights = dict(model.named_parameters())
        first = model(x).square().mean()
        gradients = torch.autograd.grad(first, list(weights.values()), create_graph=step % 2 == 0)
        fast = {name: one - 0.1 * g for (name, one), g in zip(weights.items(), gradients, strict=True)}
        return torch.func.functional_call(model, fast, (x + 1,)).square().mean() + model(x * 0.5).mean()


class PerSample(Case):
    """pytorch#122729: gradients of each sample by transforms of functions."""

    def step(self, model, optimizer, step):
        weights = {name: one.detach() for name, one in model.named_parameters()}

        def one(weights, x):
            return torch.func.functional_call(model, weights, (x[None],)).square().mean()

        found = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0))(weights, self.batch(step))
        for name, parameter in model.named_parameters():
            parameter.grad = found[name].clamp(-0.1, 0.1).mean(0)
        optimizer.step()
        return sum(one.grad.sum().item() for one in model.parameters())


class ChannelsLast(Case):
    """pytorch#48439: memory formats are mixed, and change while a model trains."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
            self.norm, self.batch = nn.GroupNorm(2, 8), nn.BatchNorm2d(4)

        def forward(self, x):
            return x + self.batch(self.second(functional.silu(self.norm(self.first(x)))))

    def before(self, model, step):
        if step in {0, LATER}:
            model.to(memory_format=torch.contiguous_format if step else torch.channels_last)

    def batch(self, step):
        x = torch.randn(2, 4, 8, 8)
        return x.to(memory_format=torch.channels_last) if step >= LATE else x


class BatchesSkipped(Case):
    """OpenNMT-py#2195: forward and backward passes raise, and the batch is left out."""

    class Block(Normed):
        calls, limit = 0, 1e9

        def forward(self, x):
            self.calls += 1
            h = self.norm(self.first(x))
            if x.abs().max() > self.limit:
                raise MemoryError("too long")
            return x + self.second(functional.gelu(h) * (1 + self.calls % 3))

    def before(self, model, step):
        model[2].limit = 1e9 if step < 3 else 2.5

    def loss(self, model, x, step):
        loss = super().loss(model, x, step)
        if step % 5 == 4:
            loss.register_hook(self.fail)
        return loss

    def fail(self, gradient):
        raise MemoryError("no room for gradients")

    def step(self, model, optimizer, step):
        with contextlib.suppress(MemoryError):
            return super().step(model, optimizer, step)
        optimizer.zero_grad()
        return -1.0


class OwnSavedTensorsHooks(Case):
    """pytorch#147565: hooks of the script's own are around a part from a step on, and later around the model."""

    class Block(Two):
        is_late = False

        def forward(self, x):
            h = self.first(x)
            with torch.autograd.graph.save_on_cpu() if self.is_late else contextlib.nullcontext():
                h = functional.gelu(h) * torch.sigmoid(h)
            return x + self.second(h)

    def before(self, model, step):
        model[1].is_late = step >= LATE

    def loss(self, model, x, step):
        with torch.autograd.graph.save_on_cpu() if step >= LATER else contextlib.nullcontext():
            return super().loss(model, x, step)


class RowsEvicted(Case):
    """torchrec#2836: rows of sparse tables are written between the calls of a step, past autograd."""

    class Block(Two):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, WIDTH, sparse=True)

        def forward(self, x):
            rows = x[:, 0].abs().mul(4).long().clamp(max=8)
            return x + self.second(functional.silu(self.first(x)) * self.table(rows))

    def loss(self, model, x, step):
        first = model(x)
        if step % 4 == 3:
            for block in model:
                block.table.weight.data[step % 9].zero_()
        return (first + model(x.flip(0))).square().mean()

    def optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.05)


class Following:
    """An optimizer of what is a parameter now.

    Args:
        model: What it trains.
    """

    def __init__(self, model):
        self.model = model

    def step(self):
        """Take a step."""
        torch.optim.SGD(self.model.parameters(), lr=0.05).step()

    def zero_grad(self):
        """Forget the gradients."""
        self.model.zero_grad()


class Pruned(Case):
    """pytorch#37322: weights are pruned by masks in a later step, more in another, and then for good."""

    def before(self, model, step):
        for block in model:
            if step in {LATE, LATE + 3}:
                prune.l1_unstructured(block.first, "weight", 0.3)
            if step == LATER:
                prune.remove(block.first, "weight")

    def optimizer(self, model):
        return Following(model)


class EarlyExits(Case):
    """torchtune#1076: samples go on until they halt, a loss is taken at each exit, and depth is scheduled."""

    class Model(Layers):
        def __init__(self, *blocks):
            super().__init__(*blocks)
            self.halt, self.depth = nn.Linear(WIDTH, 1), 1

        def forward(self, x):
            left, results, exits = torch.ones(len(x), 1), torch.zeros_like(x), []
            for turn in range(2 * self.depth):
                x = self.layers[turn % LAYERS](x)
                share = torch.minimum(torch.sigmoid(self.halt(x)), left)
                left, results = left - share, results + share * x
                exits.append(results)
                if left.max() < 0.2:
                    break
            return exits

    def before(self, model, step):
        model.depth = 2 + step // LATE

    def loss(self, model, x, step):
        exits = model(x)
        return sum(one.square().mean() * (place + 1) for place, one in enumerate(exits)) / len(exits)


class Replaced(Case):
    """pytorch-lightning#8472: the model is copied, the copy trains a step, and layers change places between them."""

    def before(self, model, step):
        if step == LATE:
            copied = copy.deepcopy(model)
            copied(torch.ones(BATCH, WIDTH)).sum().backward()
            model[1].first = copied[1].second
        if step == LATER:
            model[2] = self.Block()

    def optimizer(self, model):
        return Following(model)
