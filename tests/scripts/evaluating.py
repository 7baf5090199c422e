"""Trains in epochs whose last batch is smaller, and evaluates after each of them with a DataLoader of its own."""

import argparse
import itertools

import torch
from onnxruntime.training.ortmodule import ORTModule
from torch.nn.functional import cross_entropy

from models import Classifier, classified


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        for inputs, labels in loader:
            cross_entropy(model(inputs), labels)
            print("evaluate", len(inputs))
    model.train()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--evaluate-first", action="store_true")
    args = parser.parse_args()
    model = ORTModule(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train_loader = classified(100, batch_size=8, shuffle=True, num_workers=args.workers)
    evaluation_loader = classified(10, batch_size=5)
    for epoch in itertools.count():
        for step, (inputs, labels) in enumerate(train_loader):
            if args.evaluate_first and epoch == step == 0:
                evaluate(model, evaluation_loader)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            print("train", len(inputs))
        evaluate(model, evaluation_loader)


if __name__ == "__main__":
    main()
