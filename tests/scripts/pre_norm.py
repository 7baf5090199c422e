"""Trains a transformer that normalizes first, so that ORT finds its layers' boundaries."""

import argparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.nn.functional import cross_entropy

from models import CLASSES, LENGTH, WIDTH, Block, own_peak_bytes


class PreNormBlock(Block):
    """The transformer's layer with its normalizations before attention and MLP."""

    def forward(self, x):
        x = x + self.dropout(self.attend(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
blocks = [PreNormBlock(WIDTH, heads=2, dropout=0.1) for _ in range(4)]
model = ORTModule(nn.Sequential(*blocks, nn.LayerNorm(WIDTH), nn.Flatten(), nn.Linear(LENGTH * WIDTH, CLASSES)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(args.steps):
    loss = cross_entropy(model(torch.randn(args.bs, LENGTH, WIDTH)), torch.randint(CLASSES, (args.bs,)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", step + 1, "loss", loss.item())
print("peak", own_peak_bytes())
