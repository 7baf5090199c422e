"""What each of two ranks pays for being tuned while they train: ``make bench-own-cost-ranks``.

The models of ``own_cost.py`` on gloo, with one thread each, copied to both ranks (DDP) or sharded over them
(``fully_shard`` on each block and on the model). The figures are those of ``own_cost.py``, for the dearer rank:
processor time, with a limit that everything holds. Ranks wait for each other in every step; that is nobody's.

The peaks of sharded models are told by real steps, of which the first ones recompute all blocks. So their search has
slower trials in it, and only the steps after it have a goal.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time

import torch
from own_cost import (
    ENDED,
    GOAL,
    PLAIN,
    SEARCHED,
    STEPS,
    WARMUP,
    Hooks,
    compare,
    find_search,
    listen,
    report,
    seconds_of,
)
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_overheads import MISS, MODELS, Training

import autorecompute
from autorecompute.tuning.intervals import interval


def shard(model):
    """Each block, then what is left."""
    for module in model.modules():
        if isinstance(module, torch.nn.ModuleList):
            for block in module:
                fully_shard(block)
    return fully_shard(model)


WAYS = {"DDP": DistributedDataParallel, "FSDP2": shard}


def dearest(figure):
    """The largest of all ranks' figures."""
    held = torch.tensor([figure], dtype=torch.float64)
    distributed.all_reduce(held, distributed.ReduceOp.MAX)
    return held.item()


def search(training, heard, rank):
    """Processor seconds of a search's steps here, and those of its own process, which the first rank starts."""
    autorecompute.auto(training.model, training.optimizer, memory_limit="1000GiB")
    process, beside, here = None, 0.0, []
    while len(here) < SEARCHED or not dearest(any(ENDED in line for line in heard.lines)):
        here.append(training.step())
        if rank == 0:
            process = process or find_search()
            beside = seconds_of(process, beside)
    return here, beside


def measure(title, model, rounds, heard, *, is_sharded):
    """Prints all figures of one model; the first rank does."""
    torch.manual_seed(0)
    rank, training, hooks = distributed.get_rank(), Training(model), Hooks()
    step = statistics.median([training.step() for _ in range(WARMUP + PLAIN)][WARMUP:])
    here, beside = search(training, heard, rank)
    hooks.note()
    share = dearest((sum(here) - len(here) * step) / (STEPS * step))
    added = interval(compare(training, hooks, rounds), MISS)
    after, middle = dearest(added.middle / step), dearest(added.middle)
    if rank == 0:
        print(f"{title}: a step takes {step:.3f} s; hooks add {1e3 * middle:+.3f} ms to it")
        report("a step after the search, beside a plain one", after, GOAL)
        report(f"the search in a rank's process, of {STEPS} steps", share)
        goal = None if is_sharded else GOAL
        report(f"with the search's own process, of {STEPS} steps", after + share + beside / (STEPS * step), goal)


def main():
    """Measures one model in one way; ranks are started by ``torchrun``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60, help="mirrored pairs of steps")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("way", choices=WAYS)
    args = parser.parse_args()
    heard = listen()
    distributed.init_process_group("gloo")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        model = WAYS[args.way](MODELS[args.model]())
        measure(f"{args.model}, {args.way}", model, args.rounds, heard, is_sharded=args.way == "FSDP2")
    # A thread of the group may still want the interpreter's lock to let go of the last sum. What ends the group waits
    # for that thread, and does not give up the lock.
    time.sleep(0.1)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
