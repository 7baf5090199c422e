"""Trains a small model as one of several ranks.

With ``--count`` it is trained for four steps without recompute, and anew with each file of plans; the first rank prints
the most bytes of its tensors each time.
"""

import argparse
import gc

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.functional import cross_entropy, gelu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

VOCABULARY, LENGTH, WIDTH, BLOCKS = 96, 32, 64, 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return cross_entropy(self.head(x).flatten(0, 1), tokens.flatten())


def spread(model, way, mesh):
    if way == "apart":
        return model
    if way in {"replicas", "views"}:
        return DistributedDataParallel(model, gradient_as_bucket_view=way == "views")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if way == "mixed" else MixedPrecisionPolicy()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def train(way, mesh, loader, plans, meter):
    """Trains a new model; with a meter, for four steps, after which it has the most bytes of the last one."""
    model = Model()
    whole = spread(model, way, mesh)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-3)
    if plans:
        import autorecompute

        autorecompute.apply(model, plans)
    for step, (tokens,) in enumerate(loader):
        if meter:
            gc.collect()
            meter.peak = meter.now
        whole(tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        if meter and step == 3:
            break


def count(*training):
    """Trains under a meter of its own, and prints what that has."""
    from autorecompute.backends.torch.fake.live import LiveBytes

    with LiveBytes() as meter:
        train(*training, meter)
    gc.collect()
    if torch.distributed.get_rank() == 0:
        print("peak", meter.peak)


parser = argparse.ArgumentParser()
parser.add_argument("--way", choices=["apart", "replicas", "views", "shards", "mixed"], default="shards")
parser.add_argument("--mesh", type=int, help="so many ranks are in a mesh; all of them by default")
parser.add_argument("--world", type=int, default=-1, help="asks for so many ranks")
parser.add_argument("--alone", action="store_true", help="makes no process group")
parser.add_argument("--count", nargs="*", metavar="PLANS")
args = parser.parse_args()
if not args.alone:
    torch.distributed.init_process_group("gloo", world_size=args.world, rank=0 if args.world > 0 else -1)
ranks = 1 if args.alone else torch.distributed.get_world_size()
mesh = None if args.alone else torch.distributed.init_device_mesh("cpu", (args.mesh or ranks,))
samples = TensorDataset(torch.randint(VOCABULARY, (512, LENGTH)))
loader = DataLoader(samples, batch_size=8, sampler=DistributedSampler(samples, ranks, 0 if args.alone else None))
if args.count is None:
    train(args.way, mesh, loader, None, None)
else:
    for plans in (None, *args.count):
        count(args.way, mesh, loader, plans)
torch.distributed.destroy_process_group()
