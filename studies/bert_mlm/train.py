"""Trains a small BERT with random weights on masked bytes of the Python standard library's own source files.

A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import MASKED_VOCABULARY, MaskedByteWindows
from common.training import make_parser, train
from transformers import BertConfig, BertForMaskedLM

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> BertForMaskedLM:
    config = BertConfig(
        vocab_size=MASKED_VOCABULARY,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.sequence,
        # What was recorded in plain PyTorch is of eager attention. ORTModule computes both alike, but can recompute the
        # softmax of eager attention no more: transformers 5 makes its mask by operators that ORT does not recompute.
        attn_implementation="sdpa" if args.ortmodule else "eager",
    )
    return BertForMaskedLM(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="(default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a sample (default 128)")
    args = parser.parse_args()
    train(args, make_model, lambda count: MaskedByteWindows(args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
