"""Trains a small GPT-2 with random weights to continue the Python standard library's own source files, byte by byte.

A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import BYTES, ByteWindows
from common.training import make_parser, train
from transformers import GPT2Config, GPT2LMHeadModel

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=BYTES,
        n_embd=args.hidden,
        n_layer=args.layers,
        n_head=args.heads,
        n_positions=args.sequence,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
        # What was recorded in plain PyTorch is of eager attention. ORTModule computes both alike, but can recompute the
        # softmax of eager attention no more: transformers 5 makes its mask by operators that ORT does not recompute.
        attn_implementation="sdpa" if args.ortmodule else "eager",
    )
    return GPT2LMHeadModel(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="(default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a sample (default 128)")
    args = parser.parse_args()
    train(args, make_model, lambda count: ByteWindows(args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
