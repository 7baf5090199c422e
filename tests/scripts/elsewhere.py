"""Trains in plain PyTorch, also without an optimizer or in another process than the one that was started."""

import argparse
import multiprocessing
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

if "fork-first" in sys.argv and (child := os.fork()):
    os.waitpid(child, 0)
    sys.exit()

import torch

from models import FEATURES, Classifier


def train(*, by_hand=False, steps=100_000):
    model = Classifier()
    optimizer = None if by_hand else torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(steps):
        model.zero_grad()
        model(torch.randn(4, FEATURES)).square().mean().backward()
        if optimizer is not None:
            optimizer.step()
        else:
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.01)


def train_in_background(leave):
    """As a daemon is started: by a process that forked one which forked it."""
    if os.fork():
        leave(0)
    os.setsid()
    if os.fork():
        leave(0)
    train()


def train_in_child(method):
    process = multiprocessing.get_context(method).Process(target=train)
    process.start()
    process.join()


def help_and_train():
    """Forks a process that does something else, and ends as Python ends."""
    if os.fork() == 0:
        sys.exit(0)
    train()


def train_in_group():
    """As a script does that is to end all that it starts with itself."""
    os.setpgrp()
    train()


def train_and_leave():
    train(steps=500)
    os._exit(0)


WAYS = {
    "plain": train,
    "plain-briefly": lambda: train(steps=2),
    "by-hand": lambda: train(by_hand=True),
    "by-hand-briefly": lambda: train(by_hand=True, steps=3),
    "spawn": lambda: train_in_child("spawn"),
    "fork": lambda: train_in_child("fork"),
    "fork-first": train,
    "daemon": lambda: train_in_background(os._exit),
    "daemon-by-exit": lambda: train_in_background(sys.exit),
    "leave": lambda: os._exit(0),
    "train-and-leave": train_and_leave,
    "help-and-train": help_and_train,
    "thread": lambda: threading.Thread(target=train).start(),
    "pool": lambda: ThreadPoolExecutor().submit(train),
    "group": train_in_group,
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--way", choices=WAYS, required=True)
    WAYS[parser.parse_args().way]()
