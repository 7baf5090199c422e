"""Trains a vision transformer, a ResNet and a speech model in plain PyTorch, as the parts of one model."""

import argparse

import torch
from torch import nn
from transformers import (
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

CLASSES, VOCABULARY, WIDTH = 10, 60, 32


def make_resnet():
    """BatchNorm and skips, of two stages."""
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [2, 2], "num_labels": CLASSES}
    return ResNetForImageClassification(ResNetConfig(**sizes, layer_type="basic"))


def make_vit():
    layers = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4 * WIDTH}
    images = {"image_size": 16, "patch_size": 4, "num_labels": CLASSES}
    dropouts = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    return ViTForImageClassification(ViTConfig(**layers, **images, **dropouts))


def make_whisper():
    sides = {"layers": 2, "attention_heads": 4, "ffn_dim": 4 * WIDTH}
    both = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in sides.items()}
    sizes = {"vocab_size": VOCABULARY, "d_model": WIDTH, "num_mel_bins": 8, "dropout": 0.1, "use_cache": False}
    most = {"max_source_positions": 16, "max_target_positions": 16}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    suppressed = {"suppress_tokens": None, "begin_suppress_tokens": None}
    return WhisperForConditionalGeneration(WhisperConfig(**both, **sizes, **most, **tokens, **suppressed))


class Together(nn.Module):
    """The sum of three losses."""

    def __init__(self):
        super().__init__()
        self.vit, self.resnet, self.whisper = make_vit(), make_resnet(), make_whisper()

    def forward(self, images, classes, sounds, tokens):
        seen = [model(pixel_values=images, labels=classes).loss for model in (self.vit, self.resnet)]
        return sum(seen) + self.whisper(input_features=sounds, labels=tokens).loss


parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, default=4)
args = parser.parse_args()
torch.manual_seed(0)
model = Together().train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(100_000):
    images, classes = torch.randn(args.bs, 3, 16, 16), torch.randint(CLASSES, (args.bs,))
    model(images, classes, torch.randn(args.bs, 8, 32), torch.randint(3, VOCABULARY, (args.bs, 12))).backward()
    optimizer.step()
    optimizer.zero_grad()
