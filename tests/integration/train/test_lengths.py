"""A training whose batches differ in length."""

import json

import pytest

from autorecompute.units import MIB

SCRIPT = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 64), nn.Linear(64, 50)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 512), nn.GELU(), nn.Linear(512, 64)) for _ in range(3))

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = x + nn.functional.dropout(block(x))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(60):
    loss = model(torch.randint(50, (8, 16 + 31 * step % 496)))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
print(sum(parameter.double().sum().item() for parameter in model.parameters()))
"""
LONGEST = 512


@pytest.fixture
def train(workplace):
    """Trains with the tool to the same end as without it; gives how it went."""

    def train(study, limit, longest=LONGEST, script=SCRIPT):
        path = workplace.path / "train.py"
        path.write_text(script)
        options = ("--memory-limit", str(limit), "--study", study, "--longest", str(longest), "--tuning-steps", "60")
        finished = workplace.finish(workplace.start("-m", "autorecompute", "train", str(path), *options))
        plain = workplace.finish(workplace.start(str(path)))
        assert (finished.code, finished.stdout) == (plain.code, plain.stdout), finished.stderr
        return finished.said[-1]

    return train


def test_the_longest_batch_is_tried_beside_the_training_and_shorter_ones_recompute_less(train, workplace):
    def answer(study):
        return json.loads((workplace.study(study).path / "result.json").read_text())["best"]

    train("rest", "1024GiB")
    limit_bytes = answer("rest")["peak_bytes"] - 15 * MIB
    said, best = train("lengths", limit_bytes), answer("lengths")
    assert best["longest"] == LONGEST
    assert best["config"] != []
    assert best["peak_bytes"] <= limit_bytes
    assert best["buckets"][0]["config"] == []
    assert LONGEST // 4 <= best["buckets"][0]["length"] < LONGEST
    assert "no recompute" in said
    again = train("lengths", limit_bytes)
    assert "from step 1 on: " in again
    assert "no recompute" in again
    assert answer("lengths") == best


def test_a_length_that_the_model_does_not_take_ends_the_search_and_not_the_training(train):
    places = "x = self.embed(tokens) + torch.ones(600, 64)[torch.arange(tokens.shape[1])]"
    said = train("refused", "1024GiB", 700, SCRIPT.replace("x = self.embed(tokens)", places))
    assert "the training goes on: a step of 700 tokens beside the training fails" in said
