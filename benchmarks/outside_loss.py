"""Forecasts of peaks beside live bytes where the script computes its loss itself: ``make bench-outside-loss``.

A small GPT-2 with plain layers returns its scores, and each script makes a loss of them in its own way. Every config
trains two real steps whose live tensors are counted. It is held against the forecast from fake steps, which know that a
script computes its loss itself, but not how.
"""

from __future__ import annotations

import random
import statistics

import torch
from rich.console import Console
from rich.table import Table
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel

from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.steps import Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import detect, space_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.plans import Config

CLASSES, BATCH, SEQUENCE, CONFIGS, PLANS = 4000, 8, 64, 10, 4
SIZES = {"n_layer": 4, "n_embd": 128, "n_head": 4, "vocab_size": CLASSES, "n_positions": SEQUENCE, "use_cache": False}


class Scores(torch.nn.Module):
    """A language model that returns its scores alone."""

    def __init__(self):
        super().__init__()
        self.inner = GPT2LMHeadModel(GPT2Config(**SIZES, bos_token_id=0, eos_token_id=0))

    def forward(self, text):
        """The scores."""
        return self.inner(input_ids=text).logits


def inline(model, text, _kept):
    """The loss in one expression."""
    return functional.cross_entropy(model(text).flatten(0, 1), text.flatten())


def distance(model, text, kept):
    """The distance from a target."""
    return functional.mse_loss(model(text), kept.setdefault("target", torch.zeros(BATCH, SEQUENCE, CLASSES)))


def held(model, text, kept):
    """The scores kept until the backward pass."""
    kept["scores"] = model(text)
    return functional.cross_entropy(kept["scores"].flatten(0, 1), text.flatten())


def shifted(model, text, kept):
    """The scores kept, and a copy of them that is shifted by one token."""
    kept["scores"] = model(text)
    kept["copy"] = kept["scores"][:, :-1].contiguous()
    return functional.cross_entropy(kept["copy"].view(-1, CLASSES), text[:, 1:].reshape(-1))


def live_bytes(model, text, optimizer, loss_of):
    """The most bytes alive in the second of two steps, beyond those alive before it."""
    kept = {}
    for _ in range(2):
        meter = LiveBytes(tensors_of(model, [optimizer], (text,)))
        with meter:
            loss_of(model, text, kept).backward()
            optimizer.step()
            optimizer.zero_grad()
    return meter.peak - meter.base


def errors(loss_of, *, holds_result):
    """How far forecasts are off, as shares: for two presets, and for random configs."""
    torch.manual_seed(0)
    model, text, chance = Scores().train(), torch.randint(CLASSES, (BATCH, SEQUENCE)), random.Random(1)
    optimizer = torch.optim.AdamW(model.parameters())
    found = detect(model, (text,), {})
    board = found.switchboard(model)
    steps = survey_steps(model, found, board, Script((text,), {}, (optimizer,), holds_result=holds_result))
    space = space_of(found, board, steps)
    memory = TorchMemoryModel(space, steps, 0, {})

    def error(config):
        board.set(config.choices)
        return memory.forecast(config, memory.dims).live_bytes / live_bytes(model, text, optimizer, loss_of) - 1

    mixes = []
    for _ in range(CONFIGS):
        config = Config()
        for plan in chance.sample(space.plans, PLANS):
            config = space.with_plan(config, plan, chance.choice([None, 1, 2]))
        mixes.append(config)
    presets = [error(space.presets[name]) for name in ("none", "blocks", "operators")]
    return presets, list(map(error, mixes)), len(steps.options)


def main():
    """One row for each script."""
    torch.set_num_threads(1)
    table = Table(title=f"forecast over live bytes; {CONFIGS} random configs of up to {PLANS} plans")
    for column in ("script", "none", "blocks", "operators", "random, median", "random, worst", "fake steps"):
        table.add_column(column)
    for loss_of, holds_result in ((inline, False), (distance, False), (held, True), (shifted, True)):
        presets, mixes, options = errors(loss_of, holds_result=holds_result)
        worst = max(mixes, key=abs)
        cells = [f"{share:+.1%}" for share in (*presets, statistics.median(map(abs, mixes)), worst)]
        table.add_row(loss_of.__name__, *cells, str(options))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
