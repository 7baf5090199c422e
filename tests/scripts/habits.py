"""Trains with the habits of many scripts at once, and stops where one of them goes wrong.

Tied weights, two optimizers, a GradScaler under float16, an average of the weights in a copy of the model, and every
few steps a new model and new optimizers that go on from what was saved.
"""

import copy
import io
import itertools

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH = 60, 32, 16
STEPS_TO_A_CHECKPOINT = 3


class Language(nn.Module):
    """A small language model whose head has the weights of its embedding."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def make():
    """A model, and an optimizer for its matrices and one for the rest."""
    model = Language()
    matrices = [one for one in model.parameters() if one.dim() > 1]
    others = [one for one in model.parameters() if one.dim() == 1]
    return model, [torch.optim.AdamW(matrices, lr=1e-3), torch.optim.SGD(others, lr=1e-2, momentum=0.9)]


def evaluate(model, tokens):
    model.eval()
    with torch.no_grad():
        scores = model(tokens)
    model.train()
    return scores


def check_copies(model, tokens):
    """A copy computes with its own weights, and a pickled model is the model."""
    other = copy.deepcopy(model)
    for parameter in other.parameters():
        nn.init.zeros_(parameter)
    assert not evaluate(other, tokens).any(), "a copy is not what it should be"
    file = io.BytesIO()
    torch.save(model, file)
    assert b"autorecompute" not in file.getvalue(), "a pickled model is not what it should be"
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert torch.equal(evaluate(loaded, tokens), evaluate(model, tokens)), "a loaded model is not what it should be"
    assert loaded.head.weight is loaded.embedding.weight, "a tied weight is not what it should be"


def resume(model, optimizers, keys):
    """A model and optimizers that go on where these stopped."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizers": [one.state_dict() for one in optimizers]}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert list(saved["model"]) == keys, "a name in the state is not what it should be"
    model, optimizers = make()
    model.load_state_dict(saved["model"])
    for optimizer, state in zip(optimizers, saved["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    return model, optimizers


torch.manual_seed(0)
model, optimizers = make()
keys = list(model.state_dict())
average = copy.deepcopy(model).eval()
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
loader = DataLoader(TensorDataset(torch.randint(VOCABULARY, (64, LENGTH))), batch_size=4, drop_last=True)
batches = itertools.chain.from_iterable(itertools.repeat(loader))
for step, (tokens,) in enumerate(batches, start=1):
    with torch.autocast("cpu", torch.float16):
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    scaler.scale(loss).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.no_grad():
        for kept, new in zip(average.parameters(), model.parameters(), strict=True):
            kept.lerp_(new, 0.1)
    if step % STEPS_TO_A_CHECKPOINT == 0:
        check_copies(model, tokens)
        model, optimizers = resume(model, optimizers, keys)
