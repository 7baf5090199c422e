import contextlib
import dataclasses
import functools
import itertools
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import optuna
import pytest

from autorecompute import waiting
from autorecompute.backends import registry
from autorecompute.cli import main
from autorecompute.figures import Figures, Verdict
from autorecompute.measurement import Measurement, Outcome, Trial
from autorecompute.memory import Operation, Phase, StepProfile, Tensor
from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.result import Best, Result, SearchEnd
from autorecompute.studies import storage
from autorecompute.training_job import Detection, Device
from autorecompute.units import GIB, MIB
from workplace import own_disk

PHASES = {"f": Phase.FORWARD, "l": Phase.LOSS, "b": Phase.BACKWARD, "r": Phase.RECOMPUTE}
SITES = ("blocks.*/gelu", "blocks.*/linear", "blocks.*/softmax", "blocks.*/norm", "blocks.*/dropout")
BATCH = 32
COPIED = "_recompute"


def build_space(*, has_opaque=False):
    plans = tuple(
        Plan(choices=(Choice(name, "drop"),), label=name, occurrences=6, saving_bytes=100 - index, saving="d0")
        for index, name in enumerate(SITES)
    )
    opaque = {name: Config.parse([f"whole model:{name}"]) for name in ("light", "deep")}
    return Space(plans=plans, own_presets=opaque if has_opaque else {"light": Config.of(plans)})


def build_measurement(outcome=Outcome.OK, **changes):
    figures = {"peak_bytes": 700 * MIB, "step_seconds": (0.5, 0.5, 0.5), "samples": BATCH, "batch": BATCH}
    return Measurement(outcome=outcome, **{**(figures if outcome.is_measured else {}), **changes})


def build_trial(config=None, *, number=0, reference_seconds=None, description=None, reason="why", **measured):
    config = config or Config()
    return Trial(
        number=number,
        config=config,
        description=description or build_space().describe(config),
        reason=reason,
        measurement=build_measurement(**measured),
        reference_seconds=reference_seconds,
    )


def build_step(phases, *tensors, seconds=1.0, batch=2):
    """A profiled step: a letter for the phase of each operation, and tensors as ``(name, first, last, *shape)``."""
    return StepProfile(
        operations=tuple(
            Operation(name=f"/model/layer.{place}/{letter}", operator="Gelu", phase=PHASES[letter], seconds=seconds)
            for place, letter in enumerate(phases)
        ),
        tensors=tuple(
            Tensor(name=name, first=first, last=last, shape=tuple(shape), element_bytes=1)
            for name, first, last, *shape in tensors
        ),
        backward=phases.index("l"),
        dims={"batch": batch},
    )


@dataclasses.dataclass(frozen=True)
class Node:
    """An operation of a graph that a test writes down: what it reads, and the bytes a sample of each value it makes.

    One that ``shares`` hands the first value that it reads on under another shape.
    """

    operator: str
    reads: tuple[str, ...]
    makes: dict[str, int]
    again: bool = False
    shares: bool = False
    seconds: float = 1.0

    @property
    def key(self):
        return next(iter(self.makes))


class Graph:
    """A training graph, and what recompute makes of it, written out one operation after another.

    The backward pass is given a gradient ``d`` of each output; ``results`` are values that outlive the step.
    """

    def __init__(self, forward, outputs, backward, results=()):
        self.forward, self.backward, self.results = forward, backward, set(results)
        self._maker = {value: node for node in forward for value in node.makes}
        gradients = {f"d{value}": self._maker[value].makes[value] for value in outputs}
        self.handover = Node("YieldOp", tuple(outputs), gradients, seconds=0.0)
        read = {value for node in backward for value in node.reads}
        self._exits = {node.key for node in forward if node.again and read.intersection(node.makes)}

    @functools.cached_property
    def subgraphs(self):
        found = {}
        for node in self.forward:
            if node.key in self._exits:
                nodes = self._reach(node)
                words = "".join(f"{node.operator}+" for node in nodes)
                found.setdefault(words, []).append(tuple(node.key for node in nodes))
        return found

    @property
    def space(self):
        plans = tuple(
            Plan(choices=(Choice(words, "1"),), label=words, occurrences=len(group), saving_bytes=1, saving="batch")
            for words, group in self.subgraphs.items()
        )
        return Space(plans=plans)

    def again(self, config):
        rows = {on.site for on in config.choices}
        return {key for words in rows for keys in self.subgraphs[words] for key in keys}

    def run(self, config=None, *, batch=1):
        groups = self._write_out(self.again(config or Config()))
        nodes = [node for group in groups for node in group]
        backward = next(place for place, node in enumerate(nodes) if node.operator == "YieldOp")
        tensors = _follow([[node] for node in nodes], self.results)
        return StepProfile(
            operations=tuple(_operation(node, place, backward) for place, node in enumerate(nodes)),
            tensors=tuple(
                Tensor(name=name, shape=("batch", str(size)), element_bytes=1, first=first, last=last)
                for name, size, first, last in tensors
            ),
            backward=backward,
            dims={"batch": batch},
        )

    def count_live(self, config):
        """Bytes alive at the peak and when the backward pass begins; what runs once more in a row counts as one."""
        groups = self._write_out(self.again(config))
        lives = [life for life in _follow(groups, self.results) if life[2] < life[3]]
        peak = max(sum(size for _, size, first, last in lives if first <= at <= last) for at in range(len(groups)))
        backward = groups.index([self.handover])
        return peak, sum(size for _, size, first, last in lives if first < backward <= last)

    def _reach(self, end):
        keys = {end.key}
        for node in reversed(self.forward):
            if node.key in keys:
                sources = {self._maker[value].key for value in node.reads if value in self._maker}
                keys |= {key for key in sources if self._maker[key].again and key not in self._exits}
        return [node for node in self.forward if node.key in keys]

    def _write_out(self, again):
        groups, made = [[node] for node in (*self.forward, self.handover)], set()
        for node in self.backward:
            copies = []
            for value in node.reads:
                self._copy(value, again, made, copies)
            groups += [copies, [self._rename(node, again)]] if copies else [[self._rename(node, again)]]
        return groups

    def _copy(self, value, again, made, copies):
        node = self._maker.get(value)
        if node is None or node.key not in again or node.key in made:
            return
        made.add(node.key)
        for read in node.reads:
            self._copy(read, again, made, copies)
        makes = {f"{name}{COPIED}": size for name, size in node.makes.items()}
        copies.append(dataclasses.replace(self._rename(node, again), makes=makes))

    def _rename(self, node, again):
        reads = (f"{v}{COPIED}" if v in self._maker and self._maker[v].key in again else v for v in node.reads)
        return dataclasses.replace(node, reads=tuple(reads))


def _follow(groups, results):
    owner, lives = {}, {}
    for place, node in ((place, node) for place, group in enumerate(groups) for node in group):
        for value in node.reads:
            if (life := lives.get(owner.get(value, value))) is not None:
                life[1] = place
        for value, size in node.makes.items():
            if node.shares:
                owner[value] = owner.get(node.reads[0], node.reads[0])
            else:
                lives[value] = [place, None, size]
    end = len(groups)
    return [
        (name, size, first, end if last is None or name in results else last)
        for name, (first, last, size) in lives.items()
    ]


def _operation(node, place, backward):
    is_copy = node.key.endswith(COPIED)
    half = Phase.FORWARD if place < backward else Phase.BACKWARD
    return Operation(
        name=f"{node.operator}_{place}",
        operator=node.operator,
        phase=Phase.RECOMPUTE if is_copy else Phase.LOSS if place == backward else half,
        seconds=node.seconds,
        reads=node.reads,
        makes=tuple(node.makes),
        shares=node.shares,
        repeats=node.key.removesuffix(COPIED) if is_copy else "",
    )


def build_detection(space=None, **changes):
    space = space or build_space()
    fields = {
        "plans": space.plans,
        "own_presets": space.own_presets,
        "covers": space.covers,
        "dims": {"d0": BATCH, "d1": 128},
        "graph": "a1b2c3d4",
        "device": Device(kind="cpu", name="Some Processor", total_bytes=16 * GIB),
        "versions": {"python": "3.11.9", "torch": "2.13.0", "fake": "3.1", "backend": "fake"},
        "plan_versions": ("fake",),
        "batch": BATCH,
        "resting_bytes": 100 * MIB,
    }
    return Detection(**{**fields, **changes})


def build_result(best=None, *, of_best=(), **changes):
    """An answer: the config ``best`` was confirmed, with other figures where asked; the baseline ran out of memory."""
    detection = build_detection()
    confirmed = {
        "config": best or build_space().all_on,
        "description": build_space().describe(best or build_space().all_on),
        "batch": BATCH,
        "samples_per_second": 51.25,
        "relative_throughput": 0.875,
        "peak_bytes": 700 * MIB,
        "limit_bytes": 900 * MIB,
        "losses": (2.5, 2.25),
        "confirmed": True,
    }
    fields = {
        "study": "bert",
        "problem": "0f1e2d3c",
        "verdict": Verdict.RECOMPUTE_PAYS,
        "best": Best(**{**confirmed, **dict(of_best)}),
        "baseline": Figures(outcome=Outcome.OOM, batch=BATCH),
        "presets": {"light": Figures(), "all_on": Figures(outcome=Outcome.OOM)},
        "trials": 14,
        "search_end": SearchEnd.NOTHING_LEFT,
        "wall_seconds": 321.5,
        "device": detection.device,
        "versions": detection.versions,
        "command": ["python", "train.py"],
        "command_gives_batch": True,
    }
    return Result(**{**fields, **changes})


@pytest.fixture(scope="session", autouse=True)
def empty_database(tmp_path_factory):
    """A new study begins with a copy of an empty database: making its tables takes longer than most tests."""
    empty, own = tmp_path_factory.mktemp("database") / "empty.db", storage._open
    made = own(empty, {"uri": "true"})
    made.remove_session()
    newest = made.get_head_version()

    def _open(file, query):
        if "mode" not in query and not os.path.lexists(file):
            with contextlib.suppress(OSError):  # which the study itself is to tell of
                shutil.copyfile(empty, file)
        return own(file, query)

    versions = optuna.storages._rdb.storage._VersionManager
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_open", _open)
        # Optuna compiles the scripts of all its migrations each time it opens a database, to learn which is the last.
        patch.setattr(versions, "get_head_version", lambda _: newest)
        yield empty


@pytest.fixture(autouse=True)
def _clock_that_never_stood(monkeypatch):
    """Keep waits for a device in one test from making the deadlines of another one later."""
    monkeypatch.setitem(waiting._stood, "seconds", 0.0)


@pytest.fixture(scope="session", autouse=True)
def _fake_backend():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.PACKAGES, "fake", "fake_backend")
        yield


def factory(build):
    return pytest.fixture(scope="session")(lambda: build)


make_space = factory(build_space)
make_measurement = factory(build_measurement)
make_trial = factory(build_trial)
make_detection = factory(build_detection)
make_result = factory(build_result)
make_step = factory(build_step)


@pytest.fixture(scope="session")
def list_configs():
    return lambda space: [
        Config.of(plans)
        for count in range(len(space.plans) + 1)
        for plans in itertools.combinations(space.plans, count)
    ]


@pytest.fixture(scope="session")
def make_root():
    """Makes folders in memory where there are any: a storage waits for its disk at every trial."""
    with contextlib.ExitStack() as roots:
        memory = Path("/dev/shm")
        place = memory if memory.is_dir() else None
        yield lambda: Path(roots.enter_context(tempfile.TemporaryDirectory(prefix="autorecompute-test-", dir=place)))


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Runs a command in an empty folder; gives its exit code, its data and its talk."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        capsys.readouterr()
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own that holds 1 MiB, with the means to fill it and to forbid writing."""
    (tmp_path / "disk").mkdir()
    with own_disk(tmp_path / "disk", 1) as folder:
        yield SmallDisk(folder)


@pytest.fixture
def no_file_longer_than():
    @contextlib.contextmanager
    def no_file_longer_than(number_of_bytes):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number_of_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return no_file_longer_than


class SmallDisk:
    def __init__(self, folder):
        self.folder = folder

    def fill(self):
        with (self.folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))

    def free(self):
        (self.folder / "filler").unlink()

    def forbid_writing(self):
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)
