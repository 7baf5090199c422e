"""A script, and a model in it that asks about its caller."""

import linecache
import textwrap

import torch
from torch import nn


class Asking(nn.Module):
    """Asks once, where gradients are taken."""

    def __init__(self, ask):
        super().__init__()
        self.weight, self.ask, self.found = nn.Parameter(torch.ones(2)), ask, None

    def forward(self, x):
        if self.found is None and torch.is_grad_enabled():
            self.found = self.ask()
        return (self.weight * x).sum()


def run_script(source, file, names):
    """Run a script with names of ours, among them the model."""
    file.write_text(textwrap.dedent(source))
    linecache.checkcache(str(file))
    exec(compile(file.read_text(), str(file), "exec"), {"__name__": "__main__", "torch": torch, **names})  # noqa: S102
    return names["model"].found
