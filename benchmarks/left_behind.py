"""What looking at a model leaves in a process of a CPU: ``python benchmarks/left_behind.py``.

Set ``MALLOC_MMAP_THRESHOLD_=1048576``: else glibc keeps pages by chance.
Two processes take three steps of the same model, one of them after it was looked at as ``tune`` does. Printed is what
both hold in the end, what the fake steps had left by their own account, and what neither explains.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from autorecompute.meters.host import HostMeter
from autorecompute.units import MIB

STEPS = 3
SIZES = {"vocab_size": 2000}


def model_of(name):
    """A small transformer."""
    import transformers

    if name == "llama":
        sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 6, "num_attention_heads": 8}
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, **sizes))
    if name == "bert":
        sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8}
        return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **sizes))
    sizes = {"d_model": 256, "d_ff": 1024, "num_layers": 4, "num_heads": 8, "d_kv": 32, "decoder_start_token_id": 0}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**SIZES, **sizes))


def held(meter):
    """Resident bytes once what is free was given back."""
    meter.release()
    return meter.held_bytes()


def train(name, *, looks):
    """What the process holds after some steps, what the tool's modules took, and what the fake steps have left."""
    import torch

    meter, modules, left = HostMeter(), 0, 0
    torch.manual_seed(0)
    model = model_of(name).train()
    tokens = torch.randint(SIZES["vocab_size"], (16, 64))
    call = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.AdamW(model.parameters())
    if looks:
        before = held(meter)
        from autorecompute.backends.torch.fake.steps import Script
        from autorecompute.backends.torch.fake.survey import survey_steps
        from autorecompute.backends.torch.switch.applying import Tuned
        from autorecompute.backends.torch.worker import surveyed

        modules = held(meter) - before
        tuned = Tuned.of(model, (), call)
        script = Script((), call, (optimizer,))
        _, left = surveyed(model, lambda: (survey_steps(model, tuned.found, tuned.board, script), ""))
    for _ in range(STEPS):
        model(**call).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(json.dumps([held(meter), modules, left]))


def measure(name, *options):
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--train", name, *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main():
    """Prints a table of all three models."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train", choices=("llama", "bert", "t5"), help=argparse.SUPPRESS)
    parser.add_argument("--looks", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train is not None:
        train(args.train, looks=args.looks)
        return
    table = Table("model", "plain", "looked at", "modules of the tool", "left by fake steps", "unexplained")
    for name in ("llama", "bert", "t5"):
        (plain, *_), (looked, modules, left) = measure(name), measure(name, "--looks")
        figures = (plain, looked, modules, left, looked - plain - modules - left)
        table.add_row(name, *(f"{figure / MIB:.1f} MiB" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
