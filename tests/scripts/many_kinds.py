"""Trains a vision transformer, a ResNet and a speech model in plain PyTorch, as the parts of one model."""

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import ViTConfig, ViTForImageClassification, WhisperConfig, WhisperForConditionalGeneration

CLASSES, VOCABULARY, WIDTH = 10, 60, 32


class Residual(nn.Module):
    """A block with BatchNorm and ReLUs in place."""

    def __init__(self, inner, outer, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Conv2d(inner, outer, 1, stride) if inner != outer else nn.Identity()

    def forward(self, x):
        inner = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        return self.relu(inner + self.down(x))


def make_resnet():
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1)),
        nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1)),
        nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, CLASSES)),
    )


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
        seen = self.vit(pixel_values=images, labels=classes).loss + cross_entropy(self.resnet(images), classes)
        return seen + self.whisper(input_features=sounds, labels=tokens).loss


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
