"""Trains with Hugging Face Accelerate, which accumulates the gradients of two forwards."""

import torch
from accelerate import Accelerator
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import Classifier, classified

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = ORTModule(Classifier())
loader = classified(shuffle=True, drop_last=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loader)
for _ in range(100_000):
    for inputs, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(inputs), labels))
            optimizer.step()
            optimizer.zero_grad()
            print("train", len(inputs))
