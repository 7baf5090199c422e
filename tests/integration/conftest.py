"""Runs the tool as its users do: as a command, in a working directory, on training scripts."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil
import pytest

from autorecompute.backends.ortmodule.controller import import_hooks
from autorecompute.startup import HOOKS_VARIABLE, format_hooks, prepend_to_python_path
from autorecompute.units import MIB, parse_bytes

SCRIPTS = Path(__file__).parents[1] / "scripts"
STAND_IN = Path(__file__).parents[1] / "stand_ins" / "plain"
"""Has an ORTModule that hands back the model: the scripts that use one train in plain PyTorch."""

ONE_THREAD = Path(__file__).parents[2] / "benchmarks" / "replay" / "one_thread"

QUICK = ("--steps", "2", "--warmup", "1")
"""The least effort at which every part of a tuning still takes place."""

HANG_SECONDS = 600
"""Far beyond what any command takes: a test that hangs must end."""

PLAIN_BATCH = 192
PLAIN = ("plain_transformer.py", "--backend", "torch", "--batch-flag=--bs")
"""What follows ``tune`` for the transformer in plain PyTorch, which starts much sooner than in ORTModule."""

HAND_WRITTEN_PLAN = "FusedMatMul+Add+:1:-1"
"""What a user of ORTModule could have switched on by hand; it saves a part of the transformer's peak."""


def pytest_addoption(parser):
    """What ``make golden-plans`` and ``make golden-plans-check`` ask for."""
    parser.addoption("--every-study", action="store_true", help="look at the plans of every study, not of two")
    parser.addoption("--record-golden", action="store_true", help="record what the studies' plans are now")


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
    """

    def __init__(self, path, temporary):
        self.path, self._temporary = path, temporary
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
        hooks = {HOOKS_VARIABLE: format_hooks(import_hooks(wrap=False))}
        variables = {"PYTHONPATH": path, "ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE", **hooks, **variables}
        return self.finish(self.start(str(SCRIPTS / script), *arguments, **variables))

    def start(self, *arguments, stdin=subprocess.DEVNULL, **variables):
        """Starts this interpreter here."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self.path,
            env={**os.environ, "TMPDIR": self._temporary, **variables},
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


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Trainings that tests start compute with one thread, so that two at once do not wait for each other's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ONE_THREAD), prepend=os.pathsep)
        yield


@pytest.fixture(scope="session")
def temporary():
    """A place for temporary files that nobody else uses; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        yield folder


@pytest.fixture(scope="session")
def scripts():
    """The folder of training scripts."""
    return SCRIPTS


@pytest.fixture
def workplace(tmp_path, temporary):
    """An empty working directory."""
    with contextlib.closing(Workplace(tmp_path, temporary)) as workplace:
        yield workplace


@pytest.fixture(scope="session")
def make_workplace(tmp_path_factory, temporary):
    """Makes working directories that outlast a test."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(contextlib.closing(Workplace(tmp_path_factory.mktemp(name), temporary)))


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A folder that all test processes of this run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def once(shared):
    """Has the first test process that asks for a command's end run it; the others read how it ended."""

    def once(name, run):
        kept = shared / f"{name}.json"
        with (shared / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not kept.exists():
                kept.write_text(json.dumps(asdict(run())))
        return Finished(**json.loads(kept.read_text()))

    return once


@pytest.fixture(scope="session")
def road(shared, temporary):
    """The working directory in which the transformer is tuned, under one limit after another; shared by all."""
    path = shared / "road"
    path.mkdir(exist_ok=True)
    with contextlib.closing(Workplace(path, temporary)) as road:
        yield road


@pytest.fixture(scope="session")
def tune_transformer():
    """Tunes the transformer at a batch of 192 under a limit, in the study of this name."""
    command = ("transformer.py", "--target-batch", "192", "--max-trials", "4", "--json")

    def tune(place, study, limit):
        return place.tune(*command, "--memory-limit", limit, "--study", study, arguments=("--bs", "{batch}"))

    return tune


@pytest.fixture(scope="session")
def unlimited(once, road, tune_transformer):
    """The transformer, tuned under a limit that nothing can reach."""
    return once("unlimited", lambda: tune_transformer(road, "unlimited", "1000GiB"))


@pytest.fixture(scope="session")
def by_hand(tmp_path_factory):
    """The variables that switch on one plan, written by hand as ORT's guide has it."""
    file = tmp_path_factory.mktemp("by-hand") / "by_hand.json"
    file.write_text(json.dumps([HAND_WRITTEN_PLAN]))
    return {"ORTMODULE_MEMORY_OPT_CONFIG": str(file)}


@pytest.fixture(scope="session")
def limit_bytes(once, unlimited, road, by_hand):
    """A limit that the transformer breaks without recompute and can hold with it."""
    trained = once("by-hand", lambda: road.train("transformer.py", "--bs", "192", "--steps", "4", **by_hand))
    return (unlimited.answer["best"]["peak_bytes"] + trained.printed_peak_bytes) // 2


@pytest.fixture(scope="session")
def tuned(once, shared, road, tune_transformer, limit_bytes):
    """The transformer, tuned under the limit."""

    def tune():
        finished = tune_transformer(road, "limited", str(limit_bytes))
        shutil.copytree(road.path / "studies" / "limited", shared / "limited")
        return finished

    return once("limited", tune)


@pytest.fixture(scope="session")
def make_copy(make_workplace, shared, tuned):
    """Makes working directories with a copy of the study ``limited`` as it was when its tuning ended."""
    assert tuned.code == 0, tuned.stderr

    def make_copy(name):
        place = make_workplace(name)
        shutil.copytree(shared / "limited", place.path / "studies" / "limited")
        return place

    return make_copy


@pytest.fixture(scope="session")
def freed_at_once():
    """The variables under which glibc gives back what tensors leave, so that a process takes what lives in it."""
    return {"MALLOC_MMAP_THRESHOLD_": str(MIB)}


@pytest.fixture(scope="session")
def plain_road(shared, temporary):
    """The working directory in which the plain transformer is looked at and tuned; shared by all."""
    path = shared / "plain-road"
    path.mkdir(exist_ok=True)
    with contextlib.closing(Workplace(path, temporary)) as road:
        yield road


@pytest.fixture(scope="session")
def plain_forecasts(once, plain_road, freed_at_once):
    """What each config of the plain transformer is predicted to hold, in bytes."""
    command = ("-m", "autorecompute", "plans", str(SCRIPTS / PLAIN[0]), *PLAIN[1:], "--batch", str(PLAIN_BATCH))
    run = functools.partial(plain_road.start, *command, "--peak", "--json", **freed_at_once)
    looked = once("plain-forecasts", lambda: plain_road.finish(run()))
    assert looked.code == 0, looked.stderr
    return {forecast["config"]: forecast["peak_bytes"] for forecast in looked.answer["peak"]["forecasts"]}


@pytest.fixture(scope="session")
def plain_limit_bytes(plain_forecasts):
    """A limit that the plain transformer breaks without recompute and can hold with it."""
    return (plain_forecasts["none"] + min(plain_forecasts.values())) // 2


@pytest.fixture(scope="session")
def tune_plain(plain_limit_bytes, freed_at_once):
    """Tunes the plain transformer under the limit, in the study of this name."""
    limited = (*PLAIN, "--memory-limit", str(plain_limit_bytes), "--json")

    def tune(place, study, *options):
        size = () if "--batches" in options else ("--target-batch", str(PLAIN_BATCH))
        return place.tune(*limited, *size, "--max-trials", "4", "--study", study, *options, **freed_at_once)

    return tune


@pytest.fixture(scope="session")
def plain_tuned(once, shared, plain_road, tune_plain):
    """The plain transformer, tuned under the limit."""

    def tune():
        finished = tune_plain(plain_road, "limited")
        shutil.copytree(plain_road.path / "studies" / "limited", shared / "plain-limited")
        return finished

    return once("plain-limited", tune)


@pytest.fixture(scope="session")
def make_plain_copy(make_workplace, shared, plain_tuned):
    """Makes working directories with a copy of the plain transformer's study ``limited`` as its tuning left it."""
    assert plain_tuned.code == 0, plain_tuned.stderr

    def make_copy(name):
        place = make_workplace(name)
        shutil.copytree(shared / "plain-limited", place.path / "studies" / "limited")
        return place

    return make_copy


@pytest.fixture(scope="session")
def below_rest(once, plain_road):
    """The plain transformer, tuned under a limit that it breaks before its first step."""
    command = (*PLAIN, "--target-batch", "64", "--memory-limit", "64MiB", "--study", "below-rest")
    return once("below-rest", lambda: plain_road.tune(*command))


@pytest.fixture(scope="session")
def hopeless(below_rest):
    """What follows ``tune`` to search in vain: the limit is just above what the transformer holds at rest."""
    resting_bytes = parse_bytes(re.search(r"holds (\S+ .iB)", below_rest.complaint)[1])
    return (*PLAIN, "--target-batch", "64", "--memory-limit", str(resting_bytes + 8 * MIB))


@pytest.fixture(scope="session")
def in_plain_pytorch():
    """The variables under which a script with an ORTModule trains in plain PyTorch."""
    return {"PYTHONPATH": os.pathsep.join([str(STAND_IN), os.environ["PYTHONPATH"]])}
