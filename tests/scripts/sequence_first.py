"""Trains a transformer in an ORTModule whose first dimension is the sequence, with a mask of as many rows."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn

LENGTH, SAMPLES, WIDTH, STEPS = 12, 3, 16, 40


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 2 * WIDTH, dropout=0.1)

    def forward(self, inputs, mask):
        return self.layer(inputs, mask)


torch.manual_seed(0)
model = ORTModule(Encoder())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
for _ in range(STEPS):
    model(torch.randn(LENGTH, SAMPLES, WIDTH), mask).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
