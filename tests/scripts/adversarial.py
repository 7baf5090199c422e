"""Trains a generator against a discriminator: two models, two optimizers, and a forward that waits for its backward."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from models import FEATURES

LATENT = 6


def tell_apart(logits, are_real):
    return binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(are_real)))


generator = ORTModule(nn.Sequential(nn.Linear(LATENT, 32), nn.GELU(), nn.Linear(32, FEATURES)))
discriminator = ORTModule(nn.Sequential(nn.Linear(FEATURES, 32), nn.GELU(), nn.Linear(32, 1)))
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(128, FEATURES)), batch_size=4, drop_last=True)
for _ in range(100_000):
    for (real,) in loader:
        fake = generator(torch.randn(len(real), LATENT))

        discriminator_optimizer.zero_grad()
        tell_apart(discriminator(real), are_real=True).backward()
        tell_apart(discriminator(fake.detach()), are_real=False).backward()
        discriminator_optimizer.step()

        generator_optimizer.zero_grad()
        tell_apart(discriminator(fake), are_real=True).backward()
        generator_optimizer.step()
        print("round", len(real))
