"""Trains, in an ORTModule, a small model with something odd about it, which its flag chooses."""

import argparse
import itertools
import os

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch import nn
from torch.utils.checkpoint import checkpoint

from models import FEATURES, Classifier

LENGTH, SAMPLES = 12, 3


class Checkpointed(Classifier):
    """Checkpoints its layers, without reentering autograd."""

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


class Halfway(nn.Module):
    """Returns a sum as well, which nothing in the backward pass reads: its softmax is all that its gradient needs."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(FEATURES, FEATURES) for _ in range(3))

    def forward(self, x):
        hidden = self.first(x) + self.second(x)
        return self.last(torch.softmax(hidden, dim=-1)), hidden


class SequenceFirst(nn.TransformerEncoderLayer):
    """Has the sequence as its first dimension, with a mask of as many rows."""

    def __init__(self):
        super().__init__(FEATURES, 2, 2 * FEATURES, dropout=0.1)

    def forward(self, inputs, mask):
        return super().forward(inputs, mask)


class LogGamma(Classifier):
    """Has an operator without an ONNX form."""

    def forward(self, x):
        return torch.lgamma(self.layers(x))


MODELS = {
    "checkpointed": Checkpointed,
    "halfway": Halfway,
    "sequence-first": SequenceFirst,
    "lgamma": LogGamma,
}

parser = argparse.ArgumentParser()
parser.add_argument("--model", choices=MODELS, required=True)
parser.add_argument("--fall-back", action="store_true", help="train in plain PyTorch where ORT cannot")
args = parser.parse_args()
if args.fall_back:
    os.environ["ORTMODULE_FALLBACK_POLICY"] = "FALLBACK_UNSUPPORTED_ONNX_MODEL"

torch.manual_seed(0)
model = ORTModule(MODELS[args.model]())
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
mask = nn.Transformer.generate_square_subsequent_mask(LENGTH)
for _ in itertools.count():
    is_sequence = args.model == "sequence-first"
    outputs = model(torch.randn(LENGTH, SAMPLES, FEATURES), mask) if is_sequence else model(torch.randn(4, FEATURES))
    sum(one.square().mean() for one in (outputs if isinstance(outputs, tuple) else (outputs,))).backward()
    optimizer.step()
    optimizer.zero_grad()
