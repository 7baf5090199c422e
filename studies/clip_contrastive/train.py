"""Trains a small CLIP with random weights to tell which caption belongs to which picture of a batch.

Its loss compares all pictures with all captions of one forward pass, so a batch in parts would train to something
else. A plain PyTorch training script, as its users write them: it knows nothing of tuning. Every size is a flag.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

from common.images import CAPTION_VOCABULARY, END, CaptionedFigures
from common.training import make_parser, train
from transformers import CLIPConfig, CLIPModel

if TYPE_CHECKING:
    import argparse

    import torch
    from transformers.models.clip.modeling_clip import CLIPOutput


class ContrastiveCLIP(CLIPModel):
    """A CLIP that always returns its loss."""

    def forward(self, input_ids: torch.Tensor, pixel_values: torch.Tensor) -> CLIPOutput:
        return super().forward(input_ids=input_ids, pixel_values=pixel_values, return_loss=True)


def make_model(args: argparse.Namespace) -> ContrastiveCLIP:
    tower = {
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "intermediate_size": 4 * args.hidden,
    }
    words = {
        "vocab_size": CAPTION_VOCABULARY,
        "max_position_embeddings": args.sequence,
        "bos_token_id": None,
        "eos_token_id": END,
        "pad_token_id": END,
    }
    pictures = {"image_size": args.size, "patch_size": args.patch}
    config = CLIPConfig(text_config={**tower, **words}, vision_config={**tower, **pictures}, projection_dim=args.hidden)
    return ContrastiveCLIP(config)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--layers", type=int, default=4, help="of each tower (default 4)")
    parser.add_argument("--hidden", type=int, default=128, help="(default 128)")
    parser.add_argument("--heads", type=int, default=4, help="(default 4)")
    parser.add_argument("--sequence", type=int, default=48, help="bytes in a caption (default 48)")
    parser.add_argument("--size", type=int, default=32, help="pixels on each side of a picture (default 32)")
    parser.add_argument("--patch", type=int, default=4, help="pixels on each side of a patch (default 4)")
    args = parser.parse_args()
    train(args, make_model, lambda count: CaptionedFigures(args.size, args.sequence, count, args.seed))


if __name__ == "__main__":
    main()
