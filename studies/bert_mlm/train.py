"""Trains a small BERT with random weights on masked bytes of the Python standard library's own source files.

A plain ORTModule training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import resource
import sysconfig
import time
from pathlib import Path

with contextlib.suppress(ModuleNotFoundError):
    import autorecompute.compat  # noqa: F401  (ORTModule on torch 2.7 and later; torch 2.4 to 2.6 run without it)

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForMaskedLM

CLS, SEP, MASK = 256, 257, 258
VOCABULARY = 259
MASKED_SHARE = 0.15
IGNORED_LABEL = -100


class ByteWindows(Dataset):
    """Windows of source bytes with 15 % of them masked: ``input_ids`` and ``labels`` of shape ``[sequence]``."""

    def __init__(self, sequence: int, count: int, seed: int) -> None:
        self.bytes = torch.frombuffer(bytearray(read_standard_library()), dtype=torch.uint8)
        self.body, self.count, self.seed = sequence - 2, count, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        chance = torch.Generator().manual_seed(self.seed * self.count + index)
        start = int(torch.randint(len(self.bytes) - self.body, (), generator=chance))
        body = self.bytes[start : start + self.body].long()
        masked = torch.rand(self.body, generator=chance) < MASKED_SHARE
        inputs = body.masked_fill(masked, MASK)
        labels = body.masked_fill(~masked, IGNORED_LABEL)
        edge = torch.tensor([IGNORED_LABEL])
        return {
            "input_ids": torch.cat([torch.tensor([CLS]), inputs, torch.tensor([SEP])]),
            "attention_mask": torch.ones(self.body + 2, dtype=torch.long),
            "labels": torch.cat([edge, labels, edge]),
        }


def read_standard_library() -> bytes:
    """The top-level modules of the standard library, joined in the order of their names."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def make_model(args: argparse.Namespace) -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.sequence,
        attn_implementation="eager",  # ORT cannot build the gradient of scaled-dot-product attention with dropout
    )
    return BertForMaskedLM(config)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8, help="samples a step (default 8)")
    parser.add_argument("--steps", type=int, default=10_000, help="optimizer steps to train (default 10000)")
    parser.add_argument("--layers", type=int, default=4, help="(default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a sample (default 128)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log-every", type=int, default=5, help="steps between two printed lines (default 5)")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    random.seed(args.seed)
    torch.manual_seed(args.seed)
    model = ORTModule(make_model(args).to(args.device).train())
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    samples = ByteWindows(args.sequence, count=args.batch * args.steps, seed=args.seed)
    started, seen = time.perf_counter(), 0
    for step, batch in enumerate(DataLoader(samples, batch_size=args.batch, drop_last=True), start=1):
        batch = {name: tensor.to(args.device) for name, tensor in batch.items()}  # noqa: PLW2901
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen += len(batch["input_ids"])
        if step % args.log_every == 0 or step == args.steps:
            elapsed = time.perf_counter() - started
            print(f"step {step}  loss {loss.item():.6f}  {seen / elapsed:.1f} samples/s", flush=True)
            started, seen = time.perf_counter(), 0
    # ru_maxrss is in KiB on Linux, the only system with ORTModule wheels
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    train(parse_arguments())
