"""Trainings of the scripts beside the tests, with configs that are swapped while they train, and without."""

import itertools
import os
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.plans import Config
from autorecompute.trials import Job
from autorecompute.trials.beside import TrainingBench, TrainingEndedError
from autorecompute.trials.job import Effort
from autorecompute.worker.protocol import SETTINGS_VARIABLE, Settings
from workplace import HANG_SECONDS

SCRIPTS = Path(__file__).parent / "scripts"
DRIVER = SCRIPTS / "digested.py"
EFFORT = Effort(warmup=1, steps=2)
STEPS = 40
MOST_CONFIGS = 5
DIGESTS = 4
"""Lines that the driver prints in the end."""


TUNED = (
    "closures.py --optimizer lbfgs",
    "habits.py",
    "hf_trainer.py",
    "kinds.py --model experts",
    "lightning_trainer.py",
    "many_kinds.py",
    "mixed_precision.py --dtype bfloat16",
)
"""Each in a way of its own; tests train these."""

LEFT_ALONE = ("adversarial.py",)
"""Several models train in one step, and the search ends."""

MORE = (
    "accelerated.py",
    "accumulating.py",
    "evaluating.py",
    "casting.py",
    "closures.py --optimizer sgd",
    "custom_function.py",
    "evaluating.py --workers 2",
    "kinds.py --model function",
    "kinds.py --model lora",
    "kinds.py --model plain --varied",
    "kinds.py --model t5",
    "kinds.py --model unet",
    "language_model.py",
    "language_model.py --way trainer --bf16",
    "libraries.py --model diffusers",
    "libraries.py --model mixtral",
    "libraries.py --model peft",
    "mixed_precision.py --dtype float16",
    "padded.py",
    "plain_bert.py",
    "plain_transformer.py --dropout 0.1",
    "pre_norm.py",
    "sharing.py",
    "submodule.py",
    "tensors.py",
)
"""What the benchmark trains besides."""


@dataclass(frozen=True)
class Trained:
    """A training that ended.

    Attributes:
        code: Its exit code.
        stdout: What it printed, its digests last.
        stderr: What it wrote there.
        configs: What was switched on in its steps, in order.
    """

    code: int
    stdout: str
    stderr: str
    configs: list[Config] = field(default_factory=list)

    @property
    def digests(self):
        """What it computed; what it printed before may have times in it."""
        return self.stdout.splitlines()[-DIGESTS:]


def train_plainly(command, folder):
    """Trains without the tool."""
    return _finish(_start([sys.executable, *_job(command).training_command()[3:]], folder))


def train_beside(command, folder):
    """Trains with the tool, which swaps its configs, as a search would, and leaves the leanest on."""
    job = _job(command)
    theirs, ours = socket.socketpair()
    with theirs:
        told = Settings(address=str(theirs.fileno()), backend=job.backend)
        environment = {SETTINGS_VARIABLE: codec.encode(told).decode()}
        process = _start(job.training_command(), folder, pass_fds=[theirs.fileno()], **environment)
    bench = TrainingBench(job, folder, ours, 1000)
    configs = []
    try:
        space = bench.detect().space
        wanted = dict.fromkeys([space.all_on, Config(), *space.presets.values()])
        for config in itertools.islice(wanted, MOST_CONFIGS):
            measured = bench.measure(config, EFFORT)
            configs += [config] * bool(measured.step_seconds)
        bench.keep_config(space.all_on, "the leanest")
    except TrainingEndedError:
        pass
    bench.hang_up()
    return _finish(process, configs)


def _job(command):
    script, *arguments = command.split()
    words = (str(STEPS), str(SCRIPTS / script), *arguments)
    return Job(script=DRIVER, arguments=words, backend=registry.plain_name())


def _start(command, folder, pass_fds=(), **variables):
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )


def _finish(process, configs=()):
    with process:
        stdout, stderr = process.communicate(timeout=HANG_SECONDS)
    return Trained(process.returncode, stdout, stderr, list(configs))
