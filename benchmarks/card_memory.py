"""Holds the model of PyTorch's caching allocator against a card's own allocator: ``python benchmarks/card_memory.py``.

A small transformer trains some steps on the card, in a fresh process for each setting of the allocator. Then two things
are compared with ``torch.cuda.memory_stats``: what the model makes of the requests that the allocator recorded, which
has to be the same to the byte; and what it makes of a step on fake tensors, which lacks what libraries take for
themselves. It takes a minute, about 3 GiB of the card, and changes no setting of the card.

``--requests`` prints the recorded requests of each setting and the card's peaks as JSON instead. A test replays those
of an H100 where there is no card (``tests/unit/torch_backend/h100_requests.json.gz``).
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys

import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.fake.repeats import STEPS, card_memory
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.forecast.caching_allocator import CachingAllocator
from autorecompute.units import MIB, format_bytes

CLASSES, WIDTH, HEADS, LAYERS, SEQUENCE, BATCH = 8000, 768, 12, 6, 512, 8
FIGURES = {"allocated": "allocated_bytes", "requested": "requested_bytes", "reserved": "reserved_bytes"}
SETTINGS = {
    "": {},
    "expandable_segments:True": {"expandable_segments": True},
    "max_split_size_mb:64": {"max_split_size": 64 * MIB},
}


class Block(nn.Module):
    """Attention and two products, each added to what came in."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        """Of the shape of what came in."""
        heads = self.all(self.norms[0](x)).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Net(nn.Module):
    """A small language model that returns its loss."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(CLASSES, WIDTH), nn.Linear(WIDTH, CLASSES, bias=False)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))

    def forward(self, text):
        """The loss of each token as its own label."""
        return functional.cross_entropy(self.head(self.blocks(self.embedding(text))).flatten(0, 1), text.flatten())


def trained(device):
    """A model, its batch and its optimizer after some steps."""
    torch.manual_seed(0)
    model, text = Net().to(device), torch.randint(0, CLASSES, (BATCH, SEQUENCE), device=device)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for _ in range(STEPS):
        model(text).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, text, optimizer


def forecast(model, text, optimizer):
    """A step on fake tensors of what was trained."""
    found = detect(model, (text,), {})
    steps = FakeSteps(model, found.structure.units, Script((text,), {}, (optimizer,)), found.values)
    with steps.prepared(found.switchboard(model)) as (_, take):
        return take([], optimizes=True)


def requests_in(trace):
    """What was asked of the allocator, from the history that it recorded: storages are numbered as they come."""
    numbers, count = {}, itertools.count()
    for entry in trace:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = next(count)
            yield numbers[entry["addr"]], entry["size"]
        elif entry["action"] == "free_completed":
            yield numbers.pop(entry["addr"]), -entry["size"]


def recorded():
    """What was trained on the card, its requests, and the peaks of its allocator in bytes."""
    torch.cuda.memory._record_memory_history(context=None, max_entries=10**7)
    kept = trained("cuda")
    stats = torch.cuda.memory_stats()
    trace = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    torch.cuda.memory._record_memory_history(enabled=None)
    peaks = {name: stats[f"{figure}.all.peak"] for name, figure in FIGURES.items()}
    return kept, list(requests_in(trace)), peaks


def compare(settings):
    """The figures of the card, of its recorded requests and of a fake step, in bytes."""
    kept, requests, peaks = recorded()
    allocator = CachingAllocator(**settings)
    allocator.answer(requests)
    faked = card_memory(forecast(*kept), **settings)
    return {
        name: {"card": peaks[name], "replayed": getattr(allocator.peak, name), "faked": getattr(faked, name)}
        for name in FIGURES
    }


def requests_under(name):
    """The same for a test without a card."""
    _, requests, peaks = recorded()
    return {"settings": name, "peaks": peaks, "requests": requests}


def compared():
    """The figures under each setting."""
    return each_alone("--of")


def each_alone(flag):
    """What this script prints for each setting, from a process of its own."""
    for name in SETTINGS:
        command = [sys.executable, __file__, flag, name]
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": name}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
        yield name, json.loads(done.stdout)


def tell():
    """Prints all figures."""
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for name, figures in compared():
        print(name or "default")
        for figure, found in figures.items():
            texts = (f"{source} {format_bytes(number)} ({number})" for source, number in found.items())
            print(f"  {figure:<11}{'  '.join(texts)}")


def main():
    """Prints all figures, or as JSON what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", action="store_true", help="print the recorded requests as JSON")
    parser.add_argument("--of", choices=SETTINGS, help="print the figures of this setting alone, as JSON")
    parser.add_argument("--requests-of", choices=SETTINGS, help="print the requests of this setting alone, as JSON")
    wanted = parser.parse_args()
    if not torch.cuda.is_available():
        return "torch sees no CUDA device, and this compares with one"
    if wanted.of is not None:
        print(json.dumps(compare(SETTINGS[wanted.of])))
    elif wanted.requests_of is not None:
        print(json.dumps(requests_under(wanted.requests_of)))
    elif wanted.requests:
        found = [one for _, one in each_alone("--requests-of")]
        told = {"card": torch.cuda.get_device_name(), "torch": torch.__version__, "recorded": found}
        print(json.dumps(told, separators=(",", ":")))
    else:
        tell()
    return 0


if __name__ == "__main__":
    sys.exit(main())
