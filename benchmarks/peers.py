"""Ways to recompute in plain PyTorch, side by side: ``make bench-peers``.

A Llama and a GPT-2 of the studies train in one process for each way, set as its own documentation says:

* no recompute, and ``gradient_checkpointing_enable()`` of Hugging Face;
* the same with PyTorch's selective checkpointing, which keeps the results of matrix products;
* ``torch.compile``, by itself and with ``activation_memory_budget`` at 0.8, 0.5 and 0.3;
* for the peak of each of these as a limit the answer of a search, by ``autorecompute.apply`` from its file of plans.

All take steps in turns, in mirrored rounds. Times are processor time. Peaks are what PyTorch's profiler sees allocated
in a step beyond what is held between two, the same for eager and for compiled code. The peak of the process is that of
its resident memory in such a step; it has the compiler in it where there is one. Arguments name studies.
"""

from __future__ import annotations

import contextlib
import functools
import math
import multiprocessing
import os
import runpy
import statistics
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

from by_hand import Hand, told_ratio
from rich.console import Console
from rich.table import Table

from autorecompute.backends import registry
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.units import MIB, format_bytes

STUDIES = Path(__file__).parents[1] / "studies"
NAMES = ("llama_clm", "gpt2_clm")
SIZES = {"layers": 4, "hidden": 128, "heads": 4, "key_value_heads": 2, "sequence": 128}
"""The defaults of both."""

BATCH, CLASSES = 16, 256
WARMUP, ROUNDS = 3, 10

NONE, BLOCKS, PRODUCTS, COMPILED = "no recompute", "gradient_checkpointing_enable()", "selective", "torch.compile"
BUDGETS = {f"activation_memory_budget = {budget}": budget for budget in (0.8, 0.5, 0.3)}
COLUMNS = ("way", "live peak", "of none", "process peak", "time of a step", "of the peer", "first steps", "plans")

PEERS = (NONE, BLOCKS, PRODUCTS, COMPILED, *BUDGETS)


def checkpoint_blocks(model):
    """As Hugging Face documents it."""
    model.gradient_checkpointing_enable()
    return model


def keep_products(model):
    """As PyTorch documents it, through the argument that Hugging Face has for it."""
    import torch
    from torch.utils.checkpoint import create_selective_checkpoint_contexts

    kept = [torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default]
    contexts = functools.partial(create_selective_checkpoint_contexts, kept)
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": contexts})
    return model


def compile_whole(model, budget=1.0):
    """As PyTorch documents it."""
    import torch._functorch.config

    torch._functorch.config.activation_memory_budget = budget
    return torch.compile(model)


def apply_plans(model, file):
    """As our own pages document it."""
    import autorecompute

    autorecompute.apply(model, file)
    return model


def way_of(name):
    """What puts a peer's way on a model."""
    if name in BUDGETS:
        return functools.partial(compile_whole, budget=BUDGETS[name])
    ways = {NONE: lambda model: model, BLOCKS: checkpoint_blocks, PRODUCTS: keep_products, COMPILED: compile_whole}
    return ways[name]


class Training:
    """One model that trains its own way, in this process.

    Args:
        study: The folder whose script makes the model.
        name: The peer, or a path to a file of plans.
    """

    def __init__(self, study, name):
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        sys.path.insert(0, str(STUDIES))
        made = runpy.run_path(str(STUDIES / study / "train.py"))["make_model"](SimpleNamespace(**SIZES)).train()
        self.optimizer = torch.optim.AdamW(made.parameters())
        text = torch.randint(CLASSES, (BATCH, SIZES["sequence"]))
        self.batch = {"input_ids": text, "labels": text}
        put_on = way_of(name) if name in PEERS else functools.partial(apply_plans, file=name)
        self.model = put_on(made)

    def step(self):
        """The processor's seconds of one step."""
        began = time.process_time()
        self.model(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return time.process_time() - began

    def peaks(self):
        """The most live bytes in a step, and the most that the process holds in another."""
        from autorecompute.backends.torch.compiled.forms import AllocatedLive
        from autorecompute.backends.torch.fake.live import tensors_of
        from autorecompute.meters.host import HostMeter

        live = AllocatedLive(lambda: tensors_of(self.model, [self.optimizer], self.batch))
        live.start()
        self.step()
        live_bytes = live.stop()
        host = HostMeter()
        host.release()
        host.reset()
        self.step()
        return live_bytes, host.read().peak_bytes


def serve(study, name, connection):
    """Trains in this process as it is told to: a method's name, ``None`` at the end."""
    training = Training(study, name)
    began = time.process_time()
    for _ in range(WARMUP):
        training.step()
    connection.send(time.process_time() - began)
    while (method := connection.recv()) is not None:
        connection.send(getattr(training, method)())


class Peer:
    """A process that trains its own way.

    Args:
        study: Of its model.
        name: As :class:`Training` takes it.

    Attributes:
        first_seconds: Of its first steps, with what is compiled in them.
        live_bytes, process_bytes: Its peaks.
    """

    def __init__(self, study, name):
        self._connection, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("spawn").Process(target=serve, args=(study, name, theirs))
        self._process.start()
        theirs.close()
        self.first_seconds = self._connection.recv()
        self.live_bytes, self.process_bytes = self.ask("peaks")

    def ask(self, method):
        """What a method of its training gives."""
        self._connection.send(method)
        return self._connection.recv()

    def end(self):
        """It trains no more."""
        with contextlib.suppress(BrokenPipeError):
            self._connection.send(None)
        self._process.join()


def search(study, limits, folder):
    """The files of plans that a search answers with.

    Args:
        study: The study.
        limits: By name of a peer, how many live bytes less than without recompute it takes.
        folder: Where the files are to lie.

    Returns:
        By name of a peer, its file and the trials that the search took; peers whose peak nothing reaches are left out.
    """
    job = Job(script=STUDIES / study / "train.py", arguments=("--device", "cpu"), backend="torch")
    with Bench(job, BATCH, folder) as bench:
        hand, versions = Hand(bench), bench.detect().versions
        plain_bytes = hand.measure(Config()).measurement.peak_bytes
        for name, less_bytes in limits.items():
            config, trials = searched(hand, plain_bytes - less_bytes)
            if config is None:
                continue
            rendered = registry.render(config, (), versions, folder / str(len(list(folder.iterdir()))))
            for file, text in rendered.files.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
                yield name, str(file), " ".join(config.texts), trials


def searched(hand, limit_bytes):
    """The answer under a limit and its trials."""
    answer, trials = hand.search(limit_bytes)
    return (None if answer is None else answer.config), trials


def take_rounds(peers):
    """Seconds of every peer, an entry a round: a step on the way there, and one on the way back."""
    seconds = {name: [] for name in peers}
    for _ in range(ROUNDS):
        there = {name: peer.ask("step") for name, peer in peers.items()}
        back = {name: peers[name].ask("step") for name in reversed(peers)}
        for name, taken in seconds.items():
            taken.append(there[name] + back[name])
    return seconds


def ratio(seconds, name, other):
    """How long a step takes beside another's, with its interval."""
    if name == other:
        return "1"
    return told_ratio([math.log(a / b) for a, b in zip(seconds[name], seconds[other], strict=True)])


def compare(study, folder):
    """The table of one study."""
    peers, told = {}, {}
    with contextlib.ExitStack() as ending:

        def begin(name, way):
            peers[name] = Peer(study, way)
            ending.callback(peers[name].end)

        for name in PEERS:
            begin(name, name)
        limits = {name: peers[NONE].live_bytes - peers[name].live_bytes for name in PEERS if name != NONE}
        for name, file, plans, trials in search(study, limits, folder):
            begin(f"answer at the peak of {name}", file)
            told[f"answer at the peak of {name}"] = f"{plans}; {trials} trials"
        seconds = take_rounds(peers)
    table = Table(title=f"{study}, batch {BATCH}: a step beside one without recompute, {ROUNDS} mirrored rounds")
    for column in COLUMNS:
        table.add_column(column)
    for name, peer in peers.items():
        beside = name.partition(" at the peak of ")[2]
        table.add_row(
            name,
            format_bytes(peer.live_bytes),
            f"{peer.live_bytes / peers[NONE].live_bytes:.2f}",
            format_bytes(peer.process_bytes),
            ratio(seconds, name, NONE),
            ratio(seconds, name, beside) if beside else "",
            f"{peer.first_seconds:.1f} s",
            told.get(name, ""),
        )
    return table, statistics.median(seconds[NONE]) / 2


def main(names):
    """All studies, or those that are named."""
    # What tensors leave goes back to the system, so that the process shows what its steps take.
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(MIB))
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for name in names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            table, step = compare(name, Path(folder))
        Console(width=220).print(table, f"A step without recompute took {step:.2f} s of processor time.")


if __name__ == "__main__":
    main(sys.argv[1:])
