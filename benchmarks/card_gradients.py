"""By how much gradients of two equal steps differ on this device: ``python benchmarks/card_gradients.py``.

A Llama takes the same step again and again: the same weights, samples and random numbers. Where kernels add up in any
order, its gradients are not the same. The table has the largest difference of any weight's gradient, relative to that
gradient's largest entry: of equal steps, of steps with the deterministic algorithms of PyTorch, and of a step that
draws other random numbers, as a recompute with wrong ones would. Between the two lie the tolerances of
``backends/torch/check/gradients.py``. Sizes are flags; the default ones are for a card.
"""

from __future__ import annotations

import argparse
import sys

import torch
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaForCausalLM

from autorecompute.backends.common import relative_difference

WORDS = 32_000
SEED, OTHER_SEED = 1, 2


def make_model(args, dropout):
    """A Llama of these sizes, which drops scores of attention."""
    config = LlamaConfig(
        vocab_size=WORDS,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.hidden // 64,
        num_key_value_heads=max(args.hidden // 256, 1),
        attention_dropout=dropout,
        use_cache=False,
    )
    torch.manual_seed(0)
    return LlamaForCausalLM(config).to(args.device).train()


def gradients(model, tokens, seed, *, is_autocast):
    """Those of a step that draws its random numbers from this seed, by the names of the weights."""
    torch.manual_seed(seed)
    with torch.autocast(tokens.device.type, torch.bfloat16, enabled=is_autocast):
        loss = model(input_ids=tokens, labels=tokens).loss
    names, weights = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, weights), strict=True))


def worst(expected, found):
    """The largest relative difference."""
    return max(relative_difference(expected[name], found[name]) for name in expected)


def measure(args, dropout, *, is_autocast):
    """Differences of equal steps, of deterministic ones, and of one with other random numbers."""
    model = make_model(args, dropout)
    tokens = torch.randint(WORDS, (args.batch, args.sequence), device=args.device)

    def step(seed=SEED):
        return gradients(model, tokens, seed, is_autocast=is_autocast)

    first = step()
    equal = [worst(first, step()) for _ in range(args.steps)]
    other = worst(first, step(OTHER_SEED))
    torch.use_deterministic_algorithms(True, warn_only=True)  # what has no such algorithm stays as it is
    first = step()
    deterministic = [worst(first, step()) for _ in range(args.steps)]
    torch.use_deterministic_algorithms(False)
    return equal, deterministic, other


def main():
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--layers", type=int, default=16, help="(default 16)")
    parser.add_argument("--hidden", type=int, default=1024, help="a multiple of 256 (default 1024)")
    parser.add_argument("--batch", type=int, default=2, help="(default 2)")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens in a sample (default 1024)")
    parser.add_argument("--steps", type=int, default=6, help="steps that are compared with the first (default 6)")
    args = parser.parse_args()
    name = torch.cuda.get_device_name() if args.device.startswith("cuda") else args.device
    sizes = f"{args.layers} layers, {args.hidden} wide, {args.batch} samples of {args.sequence} tokens"
    table = Table(title=f"torch {torch.__version__}, {name}; a Llama of {sizes}")
    for title in ("computed in", "dropout", "equal steps", "deterministic", "other random numbers"):
        table.add_column(title, no_wrap=True)
    for is_autocast in (True, False):
        for dropout in (0.1, 0.0):
            equal, deterministic, other = measure(args, dropout, is_autocast=is_autocast)
            ranges = [f"{min(found):.1e} to {max(found):.1e}" for found in (equal, deterministic)]
            table.add_row("bfloat16" if is_autocast else "float32", str(dropout), *ranges, f"{other:.1e}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    main()
