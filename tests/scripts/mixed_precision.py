"""Trains under autocast, with a GradScaler whose scale is too large again and again."""

import argparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import Classifier, classified

LOSS_WEIGHT = 16

parser = argparse.ArgumentParser()
parser.add_argument("--dtype", default="float16")
args = parser.parse_args()

model = ORTModule(Classifier())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=3)
loader = classified(shuffle=True, drop_last=True)
for _ in range(100_000):
    for inputs, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cpu", getattr(torch, args.dtype)):
            loss = LOSS_WEIGHT * cross_entropy(model(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        print("scale", scaler.get_scale())
