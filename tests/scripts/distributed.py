"""Trains in plain PyTorch under DistributedDataParallel, as one of a launcher's ranks or as the only one."""

import argparse
import gc
import itertools
import os
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from models import FEATURES, Classifier

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=100_000)
args = parser.parse_args()

alone = {"init_method": f"file://{Path.cwd()}/ranks", "rank": 0, "world_size": 1}
torch.distributed.init_process_group("gloo", **({} if "RANK" in os.environ else alone))
torch.manual_seed(0)
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(4, FEATURES)
for step in itertools.count(1):
    loss = model(inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", loss.item())
    if step == args.steps:
        break
print("names", *model.state_dict())
# The reducer holds the group, whose threads may abort the interpreter where they end with it. A wrapped model lies in a
# cycle, which only the collector ends.
del model, optimizer, loss
gc.collect()
torch.distributed.destroy_process_group()
