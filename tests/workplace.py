"""What a user of the tool does and sees: commands in a working directory, how they end, and the studies they leave."""

import contextlib
import json
import os
import re
import sqlite3
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autorecompute.backends import registry
from autorecompute.startup import HOOKS_VARIABLE, prepend_to_python_path

SCRIPTS = Path(__file__).parent / "scripts"
OWN_TRAINING = str(SCRIPTS / "own_training.py")
"""Prints losses, and a digest of all that its training came to."""

LONG_TRAINING = ("--steps", "50", "--dropout", "0.1", "--accumulate", "2", "--code", "7")
SHORT_TRAINING = ("--steps", "14")

QUICK = ("--steps", "2", "--warmup", "1")
"""The least effort at which every part of a tuning still takes place."""

PLAIN_BATCH = 192
"""Recompute saves far more of the plain transformer here than a library has pages, which processors differ in."""

FREED_AT_ONCE = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
"""Has glibc give back what tensors leave, so that a process takes what lives in it; all that matter are larger."""

HANG_SECONDS = 1200
"""Far beyond what any command takes: a test that hangs must end."""


@contextlib.contextmanager
def own_disk(folder, mebibytes):
    """Mounts a small disk there; a test is skipped where none can be."""
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a disk of its own needs mount, which says: {mounted.stderr.strip()}")
    yield folder
    # Optuna's pool keeps its files open: the disk goes when they do.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@dataclass(frozen=True)
class Finished:
    """A command that ended.

    Attributes:
        code: Its exit code.
        stdout: What it wrote there.
        stderr: What it wrote there.
        seconds: How long it took from its start on, by a clock that nobody sets.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def answer(self):
        """The one JSON object on stdout."""
        return json.loads(self.stdout)

    @property
    def complaint(self):
        """What the tool said in the end, from its own name on."""
        return self.stderr[self.stderr.index("autorecompute: ") :]

    @property
    def said(self):
        """What the tool said in a training, as opposed to the script and its launcher."""
        lines = [line.partition("autorecompute: ") for line in self.stderr.splitlines()]
        return [words for before, _, words in lines if words and not before]

    @property
    def printed_peak_bytes(self):
        """The peak that the script printed of its own process."""
        return int(re.search(r"^peak (\d+)$", self.stdout, re.MULTILINE)[1])

    @property
    def trial_lines(self):
        """The lines on stderr that tell of a trial."""
        return [line for line in self.stderr.splitlines() if re.match(r"\[[^]]*\] +\d+  ", line)]


class Study:
    """A study's folder, read as anybody could."""

    def __init__(self, path):
        self.path = path

    @property
    def trials(self):
        """What was kept of each trial, in order."""
        return [json.loads(file.read_text()) for file in sorted(self.path.glob("trials/*/result.json"))]

    @property
    def configs(self):
        """What each trial recomputed."""
        return [tuple(trial["config"]) for trial in self.trials]

    @property
    def logs(self):
        """What each worker printed, in the order they were started."""
        return [file.read_text() for file in sorted(self.path.glob("workers/*.log"))]

    def count_rows(self):
        """Trials in the database."""
        with contextlib.closing(sqlite3.connect(self.path / "study.db")) as database:
            return database.execute("select count(*) from trials").fetchone()[0]


class Workplace:
    """A working directory, and what a user does in it.

    Args:
        path: The directory.
        temporary: Where temporary files go, and the lock that tunings on one device wait for.
        python: The interpreter of all that is started here; ``None`` for the one of the test that starts it.
        variables: Environment of all that is started here.
    """

    def __init__(self, path, temporary, *, python=None, **variables):
        self.path, self._python, self._variables = path, python, {"TMPDIR": temporary, **variables}
        self._started = {}

    def tune(self, script, *options, arguments=(), **variables):
        """Tunes a script to the end, with the least effort."""
        return self.finish(self.start_tuning(script, *options, arguments=arguments, **variables))

    def start_tuning(self, script, *options, arguments=(), **variables):
        """Starts to tune a script."""
        return self.start(*self.tuning(script, *options, arguments=arguments), **variables)

    @staticmethod
    def tuning(script, *options, arguments=()):
        """What this interpreter is given to tune a script with the least effort."""
        rest = ["--", *arguments] if arguments else []
        return ["-m", "autorecompute", "tune", str(SCRIPTS / script), *QUICK, *options, *rest]

    def train(self, script, *arguments, **variables):
        """Trains with a script in a process of its own, with ORTModule adapted to the PyTorch there is."""
        path = prepend_to_python_path(os.environ.get("PYTHONPATH", ""))
        hooks = {HOOKS_VARIABLE: registry.controller("ortmodule").IMPORT_HOOK}
        variables = {"PYTHONPATH": path, "ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE", **hooks, **variables}
        return self.finish(self.start(str(SCRIPTS / script), *arguments, **variables))

    def start(self, *arguments, stdin=subprocess.DEVNULL, **variables):
        """Starts this interpreter here."""
        process = subprocess.Popen(
            [self._python or sys.executable, *arguments],
            cwd=self.path,
            # ORTModule drops what a script has printed and not flushed yet where it exports a model.
            env={**os.environ, "PYTHONUNBUFFERED": "1", **self._variables, **variables},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started[process] = time.monotonic()
        return process

    def finish(self, process):
        """Waits for a process to end."""
        with process:
            stdout, stderr = process.communicate(timeout=HANG_SECONDS)
        return Finished(process.returncode, stdout, stderr, time.monotonic() - self._started[process])

    def close(self):
        """Ends what a failed test has left running: a tuning would keep the device to itself."""
        for process in self._started:
            if process.poll() is None:
                for running in (process, *psutil.Process(process.pid).children(recursive=True)):
                    with contextlib.suppress(psutil.Error):
                        running.kill()
            process.communicate()

    def study(self, name="*"):
        """The study of this name, or the only one."""
        (path,) = (self.path / "studies").glob(name)
        return Study(path)

    def has_printed(self, word):
        """Whether a script printed this word while it was tuned."""
        return any(word in log.read_text() for log in self.path.glob("studies/*/workers/*.log"))

    def wait_for_trials(self, process, count):
        """Waits until a tuning has kept so many trials."""
        last = f"studies/*/trials/{count - 1:04d}/result.json"
        self.wait_until(lambda: process.poll() is not None or any(self.path.glob(last)))
        assert process.poll() is None, self.finish(process).stderr

    def processes(self):
        """All processes that run here."""
        return [process for process in psutil.process_iter() if _folder_of(process) == str(self.path)]

    @staticmethod
    def wait_until(is_true):
        """Waits for what must come in the end."""
        deadline = time.monotonic() + HANG_SECONDS
        while not is_true():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.05)


def _folder_of(process):
    with contextlib.suppress(psutil.Error):
        return process.cwd()
    return None
