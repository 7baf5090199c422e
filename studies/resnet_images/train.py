"""Trains a small ResNet with random weights to tell figures in pictures that it draws.

A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.images import FIGURES, Figures
from common.training import make_parser, train
from transformers import ResNetConfig, ResNetForImageClassification

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> ResNetForImageClassification:
    config = ResNetConfig(
        embedding_size=args.width,
        hidden_sizes=[args.width * 2**stage for stage in range(args.stages)],
        depths=[args.blocks] * args.stages,
        layer_type="basic",
        num_labels=len(FIGURES),
    )
    return ResNetForImageClassification(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--width", type=int, default=16, help="channels of the first stage (default 16)")
    parser.add_argument("--stages", type=int, default=3, help="(default 3)")
    parser.add_argument("--blocks", type=int, default=2, help="blocks in a stage (default 2)")
    parser.add_argument("--size", type=int, default=64, help="pixels on each side of a picture (default 64)")
    args = parser.parse_args()
    train(args, make_model, lambda count: Figures(args.size, count, args.seed))


if __name__ == "__main__":
    main()
