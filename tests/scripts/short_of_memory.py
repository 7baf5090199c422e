"""A training on a card, which prints what all that chance or a step may change came to: a card on paper has no values.

With --beside steps run out of memory beside it when it is through, and what that leaves is printed as well.
"""

import argparse
import json
import random

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout, self.calls = nn.Dropout(0.1), 0

    def forward(self, x):
        self.calls += 1
        return x + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Model(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def left_by(model):
    """Return which weights have gradients, how often blocks were called, and states of random numbers."""
    return {
        "gradients": [one.grad is not None for one in model.parameters()],
        "calls": [block.calls for block in model.blocks],
        "chance": [sum(random.getstate()[1]), torch.get_rng_state().sum().item(), torch.cuda.get_rng_state().tolist()],
    }


def run_beside(model, optimizer, batch, step):
    """Have steps run out of memory in either pass, and compare what is left with what was there."""
    from autorecompute.backends.torch.check.gradients import Step
    from autorecompute.backends.torch.check.room import lacking_memory
    from autorecompute.backends.torch.switch.applying import Tuned

    card, total = torch.cuda, torch.cuda.get_device_properties(0).total_memory
    board = Tuned.of(model, (batch,), {}).board
    card.empty_cache()
    card.reset_peak_memory_stats()
    rest = card.memory_allocated()
    loss = model(batch)
    saved, forward_peak = card.memory_allocated(), card.max_memory_allocated()
    loss.backward()
    del loss
    peak = card.max_memory_allocated()
    optimizer.zero_grad()
    told = {"peak": peak}
    limits = {"forward": (rest + saved) // 2, "backward": (forward_peak + peak) // 2, "fits": total}
    for name, limit in limits.items():
        card.empty_cache()
        card.set_per_process_memory_fraction(limit / total)
        card.reset_peak_memory_stats()
        held, before = card.memory_allocated(), left_by(model)
        lacks = lacking_memory(Step(model, (batch,), {}, loss=lambda result: result), board, [])
        told[name] = {
            "lacks": lacks,
            "left": card.memory_allocated() - held,
            "peak": card.max_memory_allocated(),
            "is_same": left_by(model) == before,
        }
        card.set_per_process_memory_fraction(1.0)
        step()
    return told


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--beside", action="store_true")
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    model = Model(256, 4).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        model(torch.randn(args.rows, 256).cuda()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(args.steps):
        step()
    print(json.dumps(left_by(model)))
    if args.beside:
        print(json.dumps(run_beside(model, optimizer, torch.randn(args.rows, 256).cuda(), step)))


if __name__ == "__main__":
    main()
