"""Studies as a tuning keeps them."""

import dataclasses

from autorecompute import codec
from autorecompute.figures import Figures
from autorecompute.plans import Config
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.problem import Head
from autorecompute.studies.records import BATCHES_FILE, BatchRecord
from autorecompute.studies.storage import TrialStore
from autorecompute.units import GIB, MIB

COMMAND = ("python", "train.py")
ROUND = {"step_seconds": [0.5], "reference_seconds": [0.4], "marks": []}


def keep_study(root, detection, *, name="bert", limit_bytes=GIB, batch=None, command=COMMAND, trials=(), result=None):
    """A study that has begun, with its trials and, where there is one, its answer."""
    folder, problem = StudyFolder(name, root), Problem.of(detection, limit_bytes)
    folder.prepare()
    problem = problem if batch is None else dataclasses.replace(problem, batch=batch)
    folder.keep_head(Head.of(name, command, problem, Sizes.of(detection)))
    # A database that was opened stays open in this process, and a command in another one would see that.
    store = TrialStore(folder.database, name, detection.space, limit_bytes) if trials else None
    for trial in trials:
        store.add(trial)
        folder.keep_trial(trial, list(command), {}, "step 1\n")
    if result is not None:
        folder.keep_confirmed([result.best] if result.best else [])
        folder.finish(dataclasses.replace(result, study=name))
    return folder


def keep_more(folder, step):
    """A race, several batches and a profiled step, each with something in every field."""
    standing = {"trial": 1, "description": "all plans", "peak_bytes": 700 * MIB, "rounds": [ROUND]}
    folder.write("race.json", {"ranking": None, "standings": [standing], "over_limit": [], "failed": [], "trials": 2})
    folder.write(BATCHES_FILE, BatchRecord(asked=(16, 32), without=(Figures(batch=16),)))
    profiled = {"config": codec.to_plain(Config()), "profile": codec.to_plain(step)}
    folder.write("analysis.json", {"peak_bytes": 9, "held_bytes": 5, "profiles": [profiled]})
