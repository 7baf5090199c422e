"""A Llama of 70B as one of 64 ranks on fake tensors, and torch's trackers beside our count: ``make bench-fake-ranks``.

The command runs on a script that shards the model by fully_shard. Then ``FSDPMemTracker`` and ``MemTracker``, private
tools of torch, follow the same step of a Llama with fewer layers.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import distributed
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

from autorecompute.backends.torch.check.recompute_check import OFF, RecomputeCheck
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.machine import pretend
from autorecompute.backends.torch.fake.tensors import LargeTensorsAreFake
from autorecompute.backends.torch.switch.checkpoints import Checkpoint
from autorecompute.backends.torch.switch.intercepting import put_around, release
from autorecompute.units import format_bytes

RANKS, LAYERS, FEW_LAYERS = 64, 80, 4
LIMIT = "80GiB"
VOCABULARY, LENGTH = 128256, 4096

SCRIPT = """
import torch
from torch.distributed.fsdp import fully_shard
from transformers import LlamaConfig, LlamaForCausalLM

torch.distributed.init_process_group("nccl")
torch.set_default_dtype(torch.bfloat16)
config = LlamaConfig(
    hidden_size=8192, intermediate_size=28672, num_hidden_layers=80, num_attention_heads=64, num_key_value_heads=8,
    vocab_size=128256, use_cache=False,
)
model = LlamaForCausalLM(config).train()
for layer in model.model.layers:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
while True:
    tokens = torch.randint(0, 128256, (1, 4096))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def report_llama():
    """Prints the seconds of the command on a Llama of 70B as one of 64 ranks, and what a rank takes."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "llama.py"
        script.write_text(SCRIPT)
        options = ["--fake", "--ranks", str(RANKS), "--memory-limit", LIMIT, "--json"]
        begin = time.perf_counter()
        command = [sys.executable, "-m", "autorecompute", "plans", script, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1200)
    seconds, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor, resident = used.ru_utime + used.ru_stime, format_bytes(used.ru_maxrss * 1024)
    print(f"{seconds:.0f} s ({processor:.0f} s of processor time), {resident} in the larger process")
    for forecast in json.loads(done.stdout)["peak"]["forecasts"]:
        if forecast["rank"] is not None:
            shares = {name: size for name, size in forecast["rank"].items() if name.endswith("_bytes")}
            parts = ", ".join(f"{name.removesuffix('_bytes')} {format_bytes(size)}" for name, size in shares.items())
            print(f"{forecast['config']:40} {format_bytes(forecast['peak_bytes'])}: {parts}")


def step(model, optimizer, tokens):
    """One step."""
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def report_trackers(*, shards):
    """Prints the peak of one step by torch's tracker and by our count, without recompute and with all blocks."""
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=FEW_LAYERS,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).train()
    if shards:
        for layer in model.model.layers:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(0, VOCABULARY, (1, LENGTH))
    step(model, optimizer, tokens)
    for blocks in ([], list(model.model.layers)):
        for block in blocks:
            put_around(block, [Checkpoint(block, RecomputeCheck(model, OFF).watch("blocks", "block"))])
        began = time.process_time()
        with LiveBytes(tensors_of(model, [optimizer], tokens)) as ours:
            step(model, optimizer, tokens)
        ours_took, began = time.process_time() - began, time.process_time()
        if shards:
            theirs = FSDPMemTracker(model, optimizer)
            theirs.track_inputs((tokens,))
        else:
            theirs = MemTracker()
            theirs.track_external(model, optimizer, tokens)
        with theirs:
            step(model, optimizer, tokens)
        theirs_took = time.process_time() - began
        (snapshot,) = theirs.get_tracker_snapshot("peak").values()
        print(
            f"{type(theirs).__name__:15} {len(blocks)} of {FEW_LAYERS} layers recomputed: {snapshot['Total']:,} bytes "
            f"in {theirs_took:.1f} s; ours {ours.peak:,} in {ours_took:.1f} s"
        )
        for block in blocks:
            release(block)


def main():
    """The Llama of 70B, and both trackers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trackers", action="store_true", help="leave out the Llama of 70B")
    if not parser.parse_args().trackers:
        report_llama()
    pretend(RANKS)
    distributed.init_process_group("gloo")
    with LargeTensorsAreFake(all_weights=True):
        for shards in (True, False):
            report_trackers(shards=shards)


if __name__ == "__main__":
    main()
