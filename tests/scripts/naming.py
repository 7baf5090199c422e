"""Trains one transformer whose parts can be called by other names, or be connected otherwise."""

import argparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--names", choices=["plain", "other"], default="plain")
parser.add_argument("--width", type=int, default=16)
parser.add_argument("--swaps", action="store_true", help="add what the second layer got, not what it made of it")
args = parser.parse_args()


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.dropout = nn.LayerNorm(width), nn.Dropout(0.1)

    def forward(self, inputs):
        scores = torch.softmax(self.query(inputs) @ self.key(inputs).transpose(1, 2), dim=-1)
        return self.norm(inputs + self.dropout(scores @ inputs))


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second, self.head = Layer(width), Layer(width), nn.Linear(width, 2)

    def forward(self, inputs, scale):
        hidden = self.first(inputs)
        last = self.second(hidden) * scale
        return self.head(last + (inputs if args.swaps else hidden)).mean()


class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.w_q, self.w_k = nn.Linear(n, n), nn.Linear(n, n)
        self.zz_norm, self.aa_drop = nn.LayerNorm(n), nn.Dropout(0.1)

    def forward(self, x):
        attention = torch.softmax(self.w_q(x) @ self.w_k(x).transpose(1, 2), dim=-1)
        return self.zz_norm(x + self.aa_drop(attention @ x))


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.z_block, self.a_block, self.classify = Block(n), Block(n), nn.Linear(n, 2)

    def forward(self, tokens, a_factor):
        below = self.z_block(tokens)
        above = self.a_block(below) * a_factor
        return self.classify(above + below).mean()


torch.manual_seed(0)
model = ORTModule((Model if args.names == "plain" else Net)(args.width))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(1000):
    model(torch.randn(4, 6, args.width), torch.ones(args.width)).backward()
    optimizer.step()
    optimizer.zero_grad()
