"""Trains two models with one optimizer in plain PyTorch, beside a third that no optimizer holds."""

import argparse
import copy

import torch
from torch import nn

from models import CLASSES, FEATURES, Classifier

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
parser.add_argument("--frozen", action="store_true", help="leave a Dropout of the encoder in evaluation mode")
args = parser.parse_args()

torch.manual_seed(0)
encoder = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.Dropout(0.0), nn.ReLU())
decoder, teacher, criterion = Classifier(), Classifier(), nn.CrossEntropyLoss()
encoder[1].train(not args.frozen)
decoder.average = copy.deepcopy(encoder).eval()  # as averages of weights are kept, and never called in training
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], lr=0.1)
inputs, labels = torch.randn(8, FEATURES), torch.randint(CLASSES, (8,))
for step in range(1, args.steps + 1):
    loss = criterion(decoder(encoder(inputs)), labels) + teacher(inputs).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
print("average in", "training" if any(part.training for part in decoder.average.modules()) else "evaluation", "mode")
