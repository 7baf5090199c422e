"""Trains a small vision transformer with random weights to tell figures in pictures that it draws.

A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.images import FIGURES, Figures
from common.training import make_parser, train
from transformers import ViTConfig, ViTForImageClassification

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> ViTForImageClassification:
    config = ViTConfig(
        image_size=args.size,
        patch_size=args.patch,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        num_labels=len(FIGURES),
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        attn_implementation="eager",  # what was recorded of this study is of this attention
    )
    return ViTForImageClassification(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="(default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--size", type=int, default=32, help="pixels on each side of a picture (default 32)")
    parser.add_argument("--patch", type=int, default=4, help="pixels on each side of a patch (default 4)")
    args = parser.parse_args()
    train(args, make_model, lambda count: Figures(args.size, count, args.seed))


if __name__ == "__main__":
    main()
