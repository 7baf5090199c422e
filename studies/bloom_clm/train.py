"""Trains a BLOOM of three layers with random weights to continue the Python standard library's own source files.

A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import BYTES, ByteWindows
from common.training import make_parser, train
from torch import nn
from transformers import BloomConfig, BloomForCausalLM

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> BloomForCausalLM:
    config = BloomConfig(
        vocab_size=BYTES,
        hidden_size=args.hidden,
        n_layer=args.layers,
        n_head=args.heads,
        hidden_dropout=0.1,
        attention_dropout=0.1,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    model = BloomForCausalLM(config)
    if args.ortmodule:
        for block in model.transformer.h:
            # transformers computes this GELU in an autograd.Function of its own, which ORTModule cannot export
            block.mlp.gelu_impl = nn.GELU(approximate="tanh")
    return model


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=3, help="(default 3)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a sample (default 128)")
    args = parser.parse_args()
    train(args, make_model, lambda count: ByteWindows(args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
