"""Trains a model of which only the middle is an ORTModule, with an optimizer for each part."""

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from models import CLASSES, FEATURES, Classifier


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body, self.head = (
            nn.Embedding(100, FEATURES),
            ORTModule(Classifier()),
            nn.Linear(CLASSES, 2),
        )

    def forward(self, tokens):
        return self.head(self.body(self.embedding(tokens)))


model = Model()
optimizers = [torch.optim.AdamW(part.parameters(), lr=1e-3) for part in (model.embedding, model.body, model.head)]
loader = DataLoader(TensorDataset(torch.randint(100, (128,)), torch.randint(2, (128,))), batch_size=4, drop_last=True)
for _ in range(100_000):
    for tokens, labels in loader:
        cross_entropy(model(tokens), labels).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        print("train", len(tokens))
