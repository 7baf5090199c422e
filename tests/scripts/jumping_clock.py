"""Trains the plain transformer while the wall clock is set forward and back by hours, once in every step."""

import argparse
import itertools
import mmap
import os
import struct
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from models import CLASSES, LENGTH, WIDTH, Encoder

HOUR = 3600

parser = argparse.ArgumentParser()
parser.add_argument("--bs", type=int, required=True)
args = parser.parse_args()

torch.manual_seed(0)
model = Encoder(dropout=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs, labels = torch.randn(args.bs, LENGTH, WIDTH), torch.randint(CLASSES, (args.bs,))
with Path(os.environ["CLOCK_SHIFT"]).open("r+b") as file, mmap.mmap(file.fileno(), 0) as shift:
    for hours in itertools.cycle((-7, 5, -14)):
        struct.pack_into("q", shift, 0, hours * HOUR)
        print("it is", time.time())
        loss = cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
