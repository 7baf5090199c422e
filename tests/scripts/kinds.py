"""Trains one of several kinds of models in plain PyTorch, on random numbers."""

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional

from models import Lora

WIDTH, LENGTH, VOCABULARY = 32, 16, 60


class Experts(nn.Module):
    """A mixture of experts, of which each token goes to one."""

    def __init__(self, count=4):
        super().__init__()
        self.gate = nn.Linear(WIDTH, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)) for _ in range(count)
        )

    def forward(self, x):
        flat = x.reshape(-1, WIDTH)
        weights, choice = self.gate(flat).softmax(-1).max(-1)
        mixed = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            places = torch.nonzero(choice == number).squeeze(-1)
            mixed = mixed.index_add(0, places, expert(flat[places]) * weights[places, None])
        return x + mixed.view_as(x)


class Swish(torch.autograd.Function):
    """x * sigmoid(x), with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return gradient * (share + x * share * (1 - share))


class Own(nn.Module):
    """A block with a Function of the script's."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.outer(Swish.apply(self.inner(self.norm(x))))


class Stage(nn.Module):
    """A block of a diffusion model: convolutions between GroupNorm and SiLU."""

    def __init__(self, inner, outer):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inner), nn.GroupNorm(4, outer)
        self.conv1, self.conv2 = nn.Conv2d(inner, outer, 3, padding=1), nn.Conv2d(outer, outer, 3, padding=1)
        self.skip = nn.Conv2d(inner, outer, 1) if inner != outer else nn.Identity()

    def forward(self, x):
        hidden = self.conv1(functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(functional.silu(self.norm2(hidden)))


class UNet(nn.Module):
    """Down, a middle, and up again with what was on the way."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down = nn.ModuleList([Stage(8, 8), Stage(8, 16)])
        self.middle = Stage(16, 16)
        self.up = nn.ModuleList([Stage(32, 8), Stage(16, 8)])

    def forward(self, x):
        x, kept = self.first(x), []
        for stage in self.down:
            x = stage(x)
            kept.append(x)
            x = functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for stage in self.up:
            x = stage(torch.cat([functional.interpolate(x, scale_factor=2), kept.pop()], dim=1))
        return self.last(x)


def make_layers(kind):
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False).layers
    if kind == "lora":
        for one in layers:
            one.requires_grad_(requires_grad=False)
            one.linear1, one.linear2 = Lora(one.linear1, WIDTH, 4 * WIDTH), Lora(one.linear2, 4 * WIDTH, WIDTH)
    if kind == "experts":
        return nn.Sequential(*(nn.Sequential(one, Experts()) for one in layers))
    if kind == "function":
        return nn.Sequential(*(Own() for _ in range(4)))
    return nn.Sequential(*layers)


def make_t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(**sizes, decoder_start_token_id=0, use_cache=False))


def make_step(kind, batch, lengths):
    """A model, and what gives the loss of its next step."""
    if kind == "unet":
        model = UNet()
        return model, lambda: functional.mse_loss(model(torch.randn(batch, 3, 16, 16)), torch.randn(batch, 3, 16, 16))
    if kind == "t5":
        model = make_t5()
    else:
        model = nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), make_layers(kind), nn.Linear(WIDTH, VOCABULARY))

    def step():
        tokens = torch.randint(VOCABULARY, (batch, next(lengths)))
        if kind == "t5":
            return model(input_ids=tokens, labels=tokens).loss
        return functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())

    return model, step


parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=["lora", "experts", "function", "unet", "t5", "plain"], required=True)
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--varied", action="store_true", help="texts of several lengths")
args = parser.parse_args()
torch.manual_seed(0)
model, step = make_step(args.model, args.bs, itertools.cycle((12, LENGTH, 9) if args.varied else (LENGTH,)))
model.train()
trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-3)
for _ in range(100_000):
    loss = step()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
