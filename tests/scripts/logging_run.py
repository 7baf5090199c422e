"""Trains with two loader processes, a checkpoint after every step, and a run in each of six experiment trackers.

The trackers are stand-ins: each leaves a run in the working directory, unless its own variable keeps it from that.
"""

import argparse
import os
import uuid
from pathlib import Path
from urllib.parse import urlparse

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from models import CLASSES, FEATURES, Classifier

SWITCHES = {
    "wandb": ("WANDB_MODE", "disabled"),
    "swanlog": ("SWANLAB_MODE", "disabled"),
    ".neptune": ("NEPTUNE_MODE", "debug"),
    ".cometml-runs": ("COMET_AUTO_LOG_DISABLE", "1"),
    "clearml": ("CLEARML_OFFLINE_MODE", "1"),
}


def start_runs():
    run = uuid.uuid4().hex
    for folder, (variable, off) in SWITCHES.items():
        if os.environ.get(variable) != off:
            Path(folder, run).mkdir(parents=True)
    Path(urlparse(os.environ.get("MLFLOW_TRACKING_URI", "mlruns")).path, run).mkdir(parents=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    args = parser.parse_args()
    start_runs()
    model = ORTModule(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = TensorDataset(torch.randn(400, FEATURES), torch.randint(CLASSES, (400,)))
    step = 0
    while step < args.steps:
        for inputs, labels in DataLoader(samples, batch_size=4, drop_last=True, num_workers=2):
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            torch.save(model.state_dict(), "unfinished.pt")
            Path("unfinished.pt").replace("checkpoint.pt")
            if step == args.steps:
                break


if __name__ == "__main__":
    main()
