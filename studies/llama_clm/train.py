"""Trains a small Llama with random weights to continue the Python standard library's own source files, byte by byte.

It has what current language models have: RMSNorm, rotary positions, SwiGLU, and key-value heads that several query
heads share. A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.text import BYTES, ByteWindows
from common.training import make_parser, train
from transformers import LlamaConfig, LlamaForCausalLM

if TYPE_CHECKING:
    import argparse


def make_model(args: argparse.Namespace) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        num_key_value_heads=args.key_value_heads,
        # SwiGLU has three matrices: at 8/3 of the width, rounded, they weigh as much as two at four times the width
        intermediate_size=16 * (args.hidden // 6),
        max_position_embeddings=args.sequence,
        attention_dropout=args.attention_dropout,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="(default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--key-value-heads", type=int, default=2, help="(default 2)")
    parser.add_argument("--sequence", type=int, default=128, help="bytes in a sample (default 128)")
    parser.add_argument("--vocabulary", type=int, default=BYTES, help="words; bytes are 256 of them (default 256)")
    parser.add_argument("--attention-dropout", type=float, default=0.1, help="(default 0.1)")
    args = parser.parse_args()
    train(args, make_model, lambda count: ByteWindows(args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
