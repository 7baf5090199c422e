"""Holds much memory for a moment before it trains, as whoever unpacks a data set does."""

import torch

from models import own_peak_bytes

unpacked = b"\1" * (400 * 2**20)
del unpacked
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _step in range(8):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
print("peak", own_peak_bytes())
