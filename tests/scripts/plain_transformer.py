"""Trains, in plain PyTorch, a small transformer on random sequences. Its batch is a flag."""

import argparse

import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from models import CLASSES, LENGTH, WIDTH, Encoder, own_peak_bytes


def main(wrap=lambda model: model):
    parser = argparse.ArgumentParser()
    parser.add_argument("--bs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--forget", action="store_true", help="call the model once more in each step, for nothing")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = wrap(Encoder(dropout=args.dropout))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    samples = TensorDataset(torch.randn(768, LENGTH, WIDTH), torch.randint(CLASSES, (768,)))
    loader = DataLoader(samples, batch_size=args.bs, drop_last=True)
    step = 0
    while step < args.steps:
        for inputs, labels in loader:
            loss = cross_entropy(model(inputs), labels)
            loss.backward()
            if args.forget:
                model(inputs)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            print("step", step, "loss", loss.item())
            if step == args.steps:
                break
    print("peak", own_peak_bytes())


if __name__ == "__main__":
    main()
