"""Trains a small transformer in plain PyTorch under DistributedDataParallel, each rank on samples of its own."""

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from models import CLASSES, LENGTH, WIDTH, Encoder

torch.distributed.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(Encoder(dropout=0.1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
samples = TensorDataset(torch.randn(512, LENGTH, WIDTH), torch.randint(CLASSES, (512,)))
for _ in range(100_000):
    for inputs, labels in DataLoader(samples, batch_size=4, drop_last=True):
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
