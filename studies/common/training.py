"""The training that all studies share: its flags, its loop, and what it prints."""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import time
from typing import TYPE_CHECKING

import torch
from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn
    from torch.utils.data import Dataset

KIB, MIB = 1024, 1024**2


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that knows the flags of every training; a study adds the sizes of its model."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--batch", type=int, default=8, help="samples a forward (default 8)")
    parser.add_argument("--accumulate", type=int, default=1, help="batches whose gradients make a step (default 1)")
    parser.add_argument("--steps", type=int, default=10_000, help="optimizer steps to train (default 10000)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log-every", type=int, default=5, help="steps between two printed lines (default 5)")
    parser.add_argument("--ortmodule", action="store_true", help="train in ONNX Runtime's ORTModule")
    parser.add_argument("--compile", action="store_true", help="run the model through torch.compile")
    parser.add_argument("--autocast", action="store_true", help="run the forward pass in bfloat16 where autocast does")
    return parser


def train(
    args: argparse.Namespace,
    make_model: Callable[[argparse.Namespace], nn.Module],
    make_samples: Callable[[int], Dataset],
) -> None:
    """Train a model whose output has a ``loss``.

    Args:
        args: Those of ``make_parser``.
        make_model: Makes the model from them.
        make_samples: Makes the samples, as many as it is told.
    """
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    model = make_model(args).to(args.device).train()
    if args.ortmodule:
        model = put_into_ortmodule(model)
    if args.compile:
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    samples = make_samples(args.batch * args.accumulate * args.steps)
    started, seen = time.perf_counter(), 0
    for passes, batch in enumerate(DataLoader(samples, batch_size=args.batch, drop_last=True), start=1):
        batch = {name: tensor.to(args.device) for name, tensor in batch.items()}  # noqa: PLW2901
        with torch.autocast(torch.device(args.device).type, torch.bfloat16, enabled=args.autocast):
            loss = model(**batch).loss
        (loss / args.accumulate).backward()
        seen += len(next(iter(batch.values())))
        if passes % args.accumulate:
            continue
        optimizer.step()
        optimizer.zero_grad()
        step = passes // args.accumulate
        if step % args.log_every == 0 or step == args.steps:
            elapsed = time.perf_counter() - started
            print(f"step {step}  loss {loss.item():.6f}  {seen / elapsed:.1f} samples/s", flush=True)
            started, seen = time.perf_counter(), 0
    print_peak(args.device)


def put_into_ortmodule(model: nn.Module) -> nn.Module:
    with contextlib.suppress(ModuleNotFoundError):
        import autorecompute.compat  # noqa: F401  (ORTModule on torch 2.7 and later; torch 2.4 to 2.6 run without it)
    from onnxruntime.training.ortmodule import ORTModule

    return ORTModule(model)


def print_peak(device: str) -> None:
    # ru_maxrss is in KiB on Linux
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB / MIB:.0f} MiB")
    if torch.device(device).type == "cuda":
        print(f"peak reserved on the card {torch.cuda.max_memory_reserved(device) / MIB:.0f} MiB")
