"""Trains on a card, and prints what all that chance or a step may change came to: a card on paper has no values."""

import argparse
import json
import random

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.calls = nn.Dropout(0.1), 0

    def forward(self, x):
        self.calls += 1
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def left_by(model):
    """Return which weights have gradients, how often blocks were called, and states of random numbers."""
    return {
        "gradients": [one.grad is not None for one in model.parameters()],
        "calls": [block.calls for block in model.blocks],
        "chance": [sum(random.getstate()[1]), torch.get_rng_state().sum().item(), torch.cuda.get_rng_state().tolist()],
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=16384)
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    model = Model(256, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(args.steps):
        model(torch.randn(args.rows, 256).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps(left_by(model)))


if __name__ == "__main__":
    main()
