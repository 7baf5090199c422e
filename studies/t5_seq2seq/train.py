"""Trains a small T5 with random weights to write the second half of a piece of source text from its first half.

Its encoder and its decoder are two kinds of blocks; the decoder's attend to the encoder's output as well. A plain
PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import BYTES, HalvedByteWindows
from common.training import make_parser, train
from transformers import T5Config, T5ForConditionalGeneration

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> T5ForConditionalGeneration:
    config = T5Config(
        vocab_size=BYTES,
        d_model=args.hidden,
        d_kv=args.hidden // args.heads,
        d_ff=4 * args.hidden,
        num_layers=args.layers,
        num_heads=args.heads,
        decoder_start_token_id=0,
        use_cache=False,
    )
    return T5ForConditionalGeneration(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=2, help="in the encoder, and in the decoder (default 2)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a half (default 128)")
    args = parser.parse_args()
    train(args, make_model, lambda count: HalvedByteWindows(args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
