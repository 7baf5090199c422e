"""Trains, in plain PyTorch, two models with one optimizer, through a hand-made loss; one model has running statistics."""

import argparse

import torch
from torch import nn

from models import CLASSES, FEATURES, Classifier

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.BatchNorm1d(FEATURES), nn.ReLU())
decoder = Classifier()
criterion = nn.CrossEntropyLoss()
teacher = Classifier().requires_grad_(requires_grad=False)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
inputs, labels = torch.randn(8, FEATURES), torch.randint(CLASSES, (8,))
for step in range(1, args.steps + 1):
    loss = criterion(decoder(encoder(inputs)), labels) + teacher(inputs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
    print("statistics", encoder[1].running_mean.norm().item(), encoder[1].num_batches_tracked.item())
encoder.eval()
with torch.no_grad():
    print("evaluated", criterion(decoder(encoder(inputs)), labels).item())
