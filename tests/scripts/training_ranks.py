"""Trains a transformer in several ranks to its own end, and prints all that a tuning in its steps could change."""

import argparse
import contextlib
import gc
import hashlib
import logging
import os
import signal
import weakref

import torch
from torch.distributed.algorithms.join import Join
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from models import CLASSES, LENGTH, WIDTH, Encoder

BATCH = 96

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--shards", action="store_true", help="trains under fully_shard")
parser.add_argument("--auto", metavar="LIMIT", help="calls autorecompute.auto on every rank, and logs what it says")
parser.add_argument("--auto-on", type=int, help="calls it on this rank alone")
parser.add_argument("--fewer", type=int, default=0, help="so many steps less on the second rank")
parser.add_argument("--dies", type=int, help="the step in which the second rank is killed")
parser.add_argument("--raises", type=int, help="the step in which the second rank raises")
args = parser.parse_args()


def tell(text):
    """Prints one line of this rank, in one piece."""
    os.write(1, f"rank {rank} {text}\n".encode())


class Choosy(Encoder):
    """Picks from a batch, and finds nothing among the first samples of the second rank."""

    def forward(self, x):
        """Raise behind all blocks, where the other rank goes on to its backward pass."""
        result = super().forward(x)
        if rank == 1 and len(x) < BATCH:
            raise ValueError("no sample of the batch is picked")
        return result


torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()
torch.manual_seed(0)
model = (Choosy if args.shards else Encoder)(dropout=0.1)
if args.shards:
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
else:
    model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
if args.auto is not None and args.auto_on in {None, rank}:
    import autorecompute

    logging.basicConfig(level=logging.INFO, format="autorecompute: %(levelname)s %(message)s")
    autorecompute.auto(model, optimizer, memory_limit=args.auto, study="auto", tuning_steps=40)
steps = args.steps - (args.fewer if rank == 1 else 0)
with Join([model]) if args.fewer else contextlib.nullcontext():
    for step in range(1, steps + 1):
        inputs, labels = torch.randn(BATCH, LENGTH, WIDTH), torch.randint(CLASSES, (BATCH,))
        loss = cross_entropy(model(inputs), labels)
        if rank == 1 and step == args.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 1 and step == args.raises:
            raise MemoryError("this rank has none left")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        tell(f"step {step} loss {loss.item()}")
digest = hashlib.sha256()
for parameter in model.parameters():
    own = parameter.to_local() if args.shards else parameter
    digest.update(own.detach().numpy().tobytes())
tell(f"weights {digest.hexdigest()} next {torch.rand(1).item()}")
# The reducer holds the group, whose threads may abort the interpreter where they end with it.
held = weakref.ref(model)
del model, optimizer, loss, parameter, own
gc.collect()
tell(f"model is held: {held() is not None}")
torch.distributed.destroy_process_group()
