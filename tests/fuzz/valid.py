"""Valid studies and archives, with something in every field: what each case begins from."""

import contextlib
import dataclasses
import functools
import io
import json
import os
from pathlib import Path

from alembic.util import pyfiles
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.engine import Engine
from sqlalchemy.util import LRUCache

from autorecompute import cli, codec, trials
from autorecompute.backends.ortmodule.controller import CONFIG_VARIABLE
from autorecompute.cli.parsers import STORAGE_VARIABLE
from autorecompute.figures import Figures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.result import Rejection, Transfer
from autorecompute.studies import StudyFolder
from autorecompute.units import MIB
from stand_ins.formula import FormulaBench, Turned
from unit.conftest import Graph, Node, build_detection, build_trial

SCRIPT = "train.py"
KEPT_KNOB = "ORTMODULE_DEEPCOPY_BEFORE_MODEL_EXPORT"
"""The variable of a knob that pays on the formula: one more in the answer."""
LIMIT = "600MiB"
OPERATORS = ("Gelu", "Softmax", "LayerNormalization", "Dropout", "Tanh")
QUICK = ("--steps", "2", "--warmup", "1", "--max-trials", "5")

TUNED, BATCHES, SHARED, UNANSWERED = "tuned", "batches", "shared", "unanswered"
ARCHIVES = "archives"


@functools.cache
def make_graph():
    """A graph with one plan for each of five operators, after the formula's five savings."""
    forward = [
        node
        for place, operator in enumerate(OPERATORS)
        for node in (
            Node("MatMul", (f"kept{place - 1}",), {f"product{place}": 10}),
            Node(operator, (f"product{place}",), {f"kept{place}": 5}, again=True),
        )
    ]
    last = len(OPERATORS) - 1
    backward = [
        Node("Gradient", (f"kept{place}", f"dkept{place}"), {f"dkept{place - 1}": 5}) for place in range(last, -1, -1)
    ]
    return Graph(forward, [f"kept{last}"], backward)


class GraphBench(FormulaBench):
    """The formula's bench, with the steps of a graph for those that are profiled; the script is never started."""

    can_change_batch = True

    def __init__(self, job, batch, *_, **__):
        detection = build_detection(
            make_graph().space,
            batch=batch or 32,
            resting_bytes=100 * MIB,
            versions={"python": "3.11.9", "torch": "2.13.0", "onnxruntime": "1.19.2", "backend": "ortmodule"},
            plan_versions=("onnxruntime",),
        )
        # Steps that are shorter than what it takes to make them up: nothing else passes for measured.
        super().__init__(detection, step_seconds=1e-6, sample_seconds=1e-8)
        self.job, self.knobs = job, {KEPT_KNOB: Turned(speed=1.2)}

    def read_config(self, environment):
        path = environment.get(CONFIG_VARIABLE)
        return Config.parse(json.loads(Path(path).read_text())) if path else Config()

    def measure(self, config, effort):
        measured = super().measure(config, effort)
        profile = make_graph().run(config, batch=effort.batch or self.detection.batch) if effort.profiles else None
        return dataclasses.replace(measured, held_bytes=measured.peak_bytes // 2, profile=profile)


def begin():
    trials.Bench = GraphBench
    # It is made for each command, and is the same but for the variable that it reads.
    make_parser = cli.make_parser
    known = make_parser()
    cli.make_parser = lambda: make_parser() if STORAGE_VARIABLE in os.environ else known
    # Each engine would compile its statements again, as long as it takes to run all else of a command.
    begin_engine, compiled = Engine.__init__, LRUCache(1000)
    Engine.__init__ = lambda self, *args, **options: (
        begin_engine(self, *args, **options) or vars(self).update(_compiled_cache=compiled)
    )
    SQLiteDialect_pysqlite.__hash__ = lambda self: hash(type(self))
    SQLiteDialect_pysqlite.__eq__ = lambda self, other: type(self) is type(other)
    # Opening a database, Optuna runs the scripts of its migrations, whatever it holds: most of the time that it takes.
    load, cached = pyfiles.load_module_py, functools.cache(pyfiles.load_module_py)
    pyfiles.load_module_py = lambda name, path: (load if "env" in name else cached)(name, path)


def make_all(place):
    with contextlib.chdir(place):
        Path(SCRIPT).write_text("raise SystemExit('nothing is trained here')\n", encoding="utf-8")
        _make_studies()
        _make_archives()


def _make_studies():
    _run("tune", SCRIPT, "--target-batch", "32", "--study", TUNED, "--memory-limit", LIMIT, "--knobs", *QUICK)
    _fill(StudyFolder(TUNED))
    _run("tune", SCRIPT, "--batches", "24,40", "--study", BATCHES, "--memory-limit", LIMIT, "--fresh", *QUICK)
    database = Path("shared.db").absolute()
    _run("tune", SCRIPT, "--study", SHARED, "--storage", f"sqlite:///{database}", "--memory-limit", LIMIT, *QUICK)
    _run("tune", SCRIPT, "--target-batch", "24", "--study", UNANSWERED, "--memory-limit", LIMIT, "--fresh", *QUICK)
    folder = StudyFolder(UNANSWERED)
    (folder.path / "result.json").unlink()
    folder.begin_trial(build_trial(number=9, outcome=Outcome.LOST))


def _fill(folder):
    """Adds what a tuning on the formula has no occasion to write."""
    result = folder.result()
    folder.keep_rejections([Rejection(config=Config(), outcome=Outcome.CRASH, reason="it died")])
    disproved = Rejection(config=Config(), outcome=Outcome.WRONG_GRADIENT, reason="in a training, step 7: it differs")
    folder.evidence.write_bytes(codec.encode(disproved) + b"\n")
    folder.finish(
        dataclasses.replace(
            result,
            rival=Figures(outcome=Outcome.OK, batch=18, samples_per_second=44.4, peak_bytes=600 * MIB),
            warnings=("train.py:12 runs the model twice",),
            transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        )
    )
    _run("report", TUNED)


def _make_archives():
    Path(ARCHIVES).mkdir()
    for name in (TUNED, BATCHES):
        file = f"{ARCHIVES}/{name}.jsonl"
        _run("studies", "export", name, "-o", file)
        _run("studies", "import", file, "--study", "imported")
        _run("studies", "delete", "imported", "--force")


def _run(*arguments):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.main(list(arguments))
    assert code == 0, f"{arguments} ended with {code}: {said.getvalue()}"
