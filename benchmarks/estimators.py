"""Holds estimators of memory beside real steps of one model: ``make bench-estimators``, some minutes.

A Llama of eight blocks trains with AdamW on the CPU, without recompute and with all blocks checkpointed. Its live bytes
are counted in a real step. Beside them: ``plans --fake``, what ``accelerate estimate-memory`` computes (its functions,
on a model that is made of its config, so that nothing is fetched), DeepSpeed's estimators of ZeRO 2 and 3 (their
formula on one card without offload, as in deepspeed 0.19.8, which need not be installed), and the way of torchtitan:
``MemTracker`` around two steps in ``FakeTensorMode``. The seconds of the real steps stand beside the estimated ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from transformers import LlamaConfig, LlamaForCausalLM

from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.units import format_bytes

BATCH, LENGTH, VOCABULARY = 8, 128, 8000
BLOCKS, WIDTH, INNER, HEADS = 8, 512, 1376, 8
TIMED_STEPS = 5
CONFIGS = {"without recompute": "none", "all blocks checkpointed": "blocks"}
"""What people call it, and the preset of ``plans``."""

SCRIPT = "from estimators import make, step\n\ntraining = make()\nwhile True:\n    step(*training)\n"


def make(*, checkpoints=False):
    """The model, its optimizer and a batch."""
    config = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=BLOCKS,
        num_attention_heads=HEADS,
        vocab_size=VOCABULARY,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).train()
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4), torch.randint(0, VOCABULARY, (BATCH, LENGTH))


def step(model, optimizer, tokens):
    """A step of training."""
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def measure(*, checkpoints):
    """The most live bytes of a real step after the first, and the median seconds of some more."""
    training = make(checkpoints=checkpoints)
    step(*training)
    model, optimizer, tokens = training
    with LiveBytes(tensors_of(model, [optimizer], tokens)) as meter:
        step(*training)
    seconds = []
    for _ in range(TIMED_STEPS):
        begin = time.perf_counter()
        step(*training)
        seconds.append(time.perf_counter() - begin)
    return meter.peak, statistics.median(seconds)


def look():
    """What ``plans --fake`` forecasts of each preset: the bytes, and the estimated seconds."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "train.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "autorecompute", "plans", script, "--fake", "--batches", str(BATCH), "--json"]
        here = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": here}
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600, env=environment)
    answer = json.loads(done.stdout)
    forecasts = {tuple(one["choices"]): one for one in answer["peak"]["forecasts"]}
    chosen = {name: forecasts[tuple(answer["presets"][name])] for name in CONFIGS.values()}
    return {name: (one["peak_bytes"], one["estimate"]["step_seconds"]) for name, one in chosen.items()}


def accelerate_bytes():
    """The largest figure of ``accelerate estimate-memory`` for training with Adam."""
    with init_empty_weights():
        model, _, _ = make()
    size, _ = calculate_maximum_sizes(model)
    return max(estimate_training_usage(size, "float32").values())


def deepspeed_bytes():
    """DeepSpeed's estimates of ZeRO 2 and 3 on one card without offload."""
    with torch.device("meta"):
        model, _, _ = make()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    largest = max(sum(one.numel() for one in module.parameters(recurse=False)) for module in model.modules())
    return 2 * parameters + 18 * parameters, 4 * largest + 18 * parameters


def tracked_bytes(*, checkpoints):
    """The peak of ``MemTracker`` over two steps on fake tensors."""
    with FakeTensorMode():
        training = make(checkpoints=checkpoints)
        tracker = MemTracker()
        tracker.track_external(*training)
        with tracker:
            step(*training)
            tracker.reset_mod_stats()
            step(*training)
    (peak,) = tracker.get_tracker_snapshot("peak").values()
    return peak["Total"]


def main():
    """A table of bytes, and one of seconds."""
    real = {name: measure(checkpoints=name == "blocks") for name in CONFIGS.values()}
    ours = look()
    of_weights = {"accelerate estimate-memory": accelerate_bytes()}
    of_weights |= dict(zip(("DeepSpeed, ZeRO 2", "DeepSpeed, ZeRO 3"), deepspeed_bytes(), strict=True))
    for words, name in CONFIGS.items():
        peak, seconds = real[name]
        print(f"{words}: {format_bytes(peak)} in a real step ({peak:,} bytes)")
        forecasts = {"plans --fake": ours[name][0], "MemTracker": tracked_bytes(checkpoints=name == "blocks")}
        for who, size in {**forecasts, **of_weights}.items():
            print(f"  {who:27} {format_bytes(size):>10}  {size / peak - 1:+8.2%}  {size - peak:+,} bytes")
        print(f"  a step: {seconds:.2f} s, estimated {ours[name][1]:.2f} s")


if __name__ == "__main__":
    main()
