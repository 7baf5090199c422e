"""Holds what ``plans --fake`` tells against real steps, and runs a Llama of 7B: ``make bench-fake``.

Each study, and each training script of the tests, is looked at on fake tensors. Then it trains with data: without
recompute, with each preset and with 40 mixes drawn by chance, or with as many as there are, a step each. The bytes
alive are compared with the forecast; this takes a few minutes a study. A script's own tensors, as its labels, are in
no forecast: where most configs of a script are off by the same bytes, these are told, and errors are what remains. The
Llama runs on fake tensors alone, as few machines have its memory. Arguments name studies or scripts, and leave out the
rest.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from forecast import EFFORT, PLAIN_BATCH, PLAIN_STUDIES, STUDIES, draw_configs, print_plain

from autorecompute.backends import registry
from autorecompute.backends.torch.forecast.records import TorchDetection
from autorecompute.errors import AutorecomputeError
from autorecompute.trials import Bench, Job
from autorecompute.units import format_bytes
from training_scripts import STAND_IN, WITH_A_FLAG, WITH_A_LOADER, job_of

SCRIPT_BATCH = 6
CONFIGS = 40
LLAMA = "llama_7b"
LIMIT = "80GiB"

SCRIPT = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, vocab_size=32000, use_cache=False)
model = LlamaForCausalLM(config).to(torch.bfloat16).train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
while True:
    tokens = torch.randint(0, 32000, (4, 2048))
    model(input_ids=tokens, labels=tokens).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def report_job(name, job, batch):
    """Prints the lines of one study or script: plans, and forecasts of fake tensors against steps with data."""
    with tempfile.TemporaryDirectory() as logs:
        with Bench(dataclasses.replace(job, fakes=True), batch, Path(logs)) as bench:
            fake = bench.detect()
        with Bench(job, batch, Path(logs)) as bench:
            space = bench.detect().space
            configs = draw_configs(space, len(set(space.presets.values())) + CONFIGS)
            trials = {config: bench.measure(config, EFFORT) for config in configs}
    ids, fake_ids = ({plan.id for plan in plans} for plans in (space.plans, fake.plans))
    print(f"{name:14} {len(ids)} plans; only on fakes: {len(fake_ids - ids)}, only with data: {len(ids - fake_ids)}")
    if memory := registry.backend_of(fake.versions).memory_of(fake):
        print_plain(name, memory, trials)
    else:
        print(f"{name:14} no forecast: {TorchDetection.of(fake).no_steps}")


def report_script(command):
    """Reports one training script of the tests, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            report_job(command, job_of(command), SCRIPT_BATCH)
        except AutorecomputeError as error:
            print(f"{command:14} {error}")


def report_llama():
    """Prints the seconds and the memory of the command on a Llama of 7B, and what it told."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "llama.py"
        script.write_text(SCRIPT)
        command = [sys.executable, "-m", "autorecompute", "plans", script, "--fake", "--memory-limit", LIMIT, "--json"]
        begin = time.perf_counter()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    seconds, used = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    peak = json.loads(done.stdout)["peak"]
    presets = {forecast["config"]: format_bytes(forecast["peak_bytes"]) for forecast in peak["forecasts"]}
    processor, resident = used.ru_utime + used.ru_stime, format_bytes(used.ru_maxrss * 1024)
    print(
        f"{LLAMA:14} {seconds:.0f} s ({processor:.0f} s of processor time), {resident} in the larger process; "
        f"without recompute {presets['none']}, frontier of {len(peak['frontier'])} configs"
    )


def main():
    """The Llama, all studies and all scripts, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a study, a script with its arguments, or {LLAMA}")
    os.environ |= {"PYTHONPATH": str(STAND_IN), "HF_HUB_OFFLINE": "1"}
    # The Llama comes first: what its command took is told by what all children took so far.
    for name in parser.parse_args().names or (LLAMA, *PLAIN_STUDIES, *WITH_A_LOADER, *WITH_A_FLAG):
        if name == LLAMA:
            report_llama()
        elif name in PLAIN_STUDIES:
            job = Job(script=STUDIES / name / "train.py", arguments=("--device", "cpu"), backend="torch")
            report_job(name, job, PLAIN_BATCH)
        else:
            report_script(name)


if __name__ == "__main__":
    main()
