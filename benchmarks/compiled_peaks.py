"""Forecasts of a compiled model's peak beside what its code allocates: ``python benchmarks/compiled_peaks.py``.

The compiler does all but make its kernels: each does nothing, and every allocation and every library's call is made.
So peaks are those of a real step, its time and its numbers are not, and a config takes seconds rather than minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import sys
from pathlib import Path

import torch
from compiled import NAMES, OF_TEXTS, SMALL, STUDIES
from rich.console import Console
from rich.table import Table
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch._inductor.async_compile import AsyncCompile
from torch.utils.data import DataLoader

from autorecompute.backends.torch.compiled.detection import detect_compiled
from autorecompute.backends.torch.compiled.forms import AllocatedLive
from autorecompute.units import format_bytes

BATCH = 32


def training_of(name, layers, hidden):
    """The model of a study and a batch of it."""
    sys.path.insert(0, str(STUDIES))
    spec = importlib.util.spec_from_file_location(name, Path(STUDIES) / name / "train.py")
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    found = []
    vars(study)["train"] = lambda args, make_model, make_samples: found.extend(
        (make_model(args).train(), make_samples(BATCH))
    )
    sizes = ("--layers", str(layers), "--hidden", str(hidden), *SMALL.get(name, OF_TEXTS))
    sys.argv = [name, "--device", "cpu", *sizes]
    torch.manual_seed(0)
    study.main()
    model, samples = found
    return torch.compile(model), next(iter(DataLoader(samples, batch_size=BATCH)))


def make_no_kernels():
    """Has inductor's kernels do nothing, and keeps them out of its caches."""
    AsyncCompile.cpp_pybinding = lambda _self, _types, _source: lambda *_given: None
    inductor.fx_graph_cache = functorch.enable_autograd_cache = False


def live_bytes(model, batch):
    """The most that a step has alive beyond what is held between two."""

    def step():
        model(**batch).loss.backward()
        model.zero_grad()

    step()
    meter = AllocatedLive(lambda: [*model.parameters(), *batch.values()])
    meter.start()
    step()
    return meter.stop()


def compare(name, layers, hidden):
    """A row for each forecast."""
    model, batch = training_of(name, layers, hidden)
    found, board = detect_compiled(model, (), batch)
    table = Table(title=f"{name}, {layers} layers, {hidden} wide, batch {BATCH}")
    for column in ("config", "forecast", "allocated", "error"):
        table.add_column(column)
    errors = []
    for peak in found.compiled_peaks:
        board.set(peak.config.choices)
        allocated = live_bytes(model, batch)
        errors.append(peak.peak_bytes / allocated - 1)
        row = (format_bytes(peak.peak_bytes), format_bytes(allocated), f"{errors[-1]:+.1%}")
        table.add_row(", ".join(peak.config.texts) or "none", *row)
    off = [abs(error) for error in errors]
    table.caption = f"{len(off)} configs: off by {statistics.median(off):.1%} in the median, {max(off):.1%} at worst"
    return table


def main():
    """One study, as inductor keeps what it was told of."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", nargs="?", default="llama_clm", choices=NAMES, help="(default: %(default)s)")
    parser.add_argument("--layers", type=int, default=2, help="(default 2)")
    parser.add_argument("--hidden", type=int, default=64, help="(default 64)")
    args = parser.parse_args()
    make_no_kernels()
    Console(width=160).print(compare(args.study, args.layers, args.hidden))


if __name__ == "__main__":
    main()
