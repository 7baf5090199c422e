"""Trains a small model of two blocks that torch.compile runs, as a whole or block by block."""

import argparse

import torch
from torch import nn

BATCH, WIDTH, LENGTH = 64, 32, 16

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--by-blocks", action="store_true")
parser.add_argument("--ragged", action="store_true", help="every batch is of another length")
args = parser.parse_args()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x):
        return x + self.dropout(self.down(torch.nn.functional.gelu(self.up(self.norm(x)))))


torch.manual_seed(0)
model = nn.Sequential(*[Block() for _ in range(2)], nn.Linear(WIDTH, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
if args.by_blocks:
    for block in model[:2]:
        block.compile()
else:
    model = torch.compile(model)
for step in range(args.steps):
    loss = model(torch.randn(BATCH, LENGTH + (step if args.ragged else 0), WIDTH)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step, "loss", loss.item())
