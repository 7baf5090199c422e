"""A study that was damaged, or written by somebody else, ends in a sentence, whatever reads it."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import json
import operator
import os
import sqlite3
from pathlib import Path

import pytest

from autorecompute import codec
from autorecompute.backends import ORTMODULE, emission_of
from autorecompute.cli import main
from autorecompute.errors import NothingFitsError, SetupError, UsageError
from autorecompute.figures import KnobFigures
from autorecompute.knobs import KnobStudy
from autorecompute.measurement import Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.result import RaceEnd, Ranking, Rejection
from autorecompute.studies import KnobFolder, Problem, Sizes, StudyFolder
from autorecompute.studies.analysis import FILE as ANALYSIS
from autorecompute.studies.archive import compress, dump
from autorecompute.studies.batches import BatchRecord, keep_batches
from autorecompute.studies.race import FILE as RACE
from autorecompute.studies.records import read_records
from autorecompute.studies.sharing.mirror import SHARED, share
from autorecompute.studies.storage import TrialStore
from autorecompute.studies.transfer import Tuned, find_nearest
from autorecompute.units import MIB

LIMIT = 900 * MIB
DEEP = "[" * 200_000
ROUND = {"step_seconds": [0.5], "reference_seconds": [0.4], "marks": []}
READING = {
    "show": ["show", "bert"],
    "show --json": ["show", "bert", "--json"],
    "report": ["report", "bert"],
    "emit": ["emit", "bert"],
    "run": ["run", "bert", "--", "true"],
    "check": ["check", "bert"],
    "export": ["studies", "export", "bert"],
    "compare": ["studies", "compare", "bert", "other"],
}
LISTING = {"list": ["studies", "list"], "list --json": ["studies", "list", "--json"], "prune": ["studies", "prune"]}


@pytest.fixture
def keep(tmp_path, monkeypatch, make_detection, make_space, make_trial, make_result, make_step):  # noqa: PLR0917
    """Keeps a study with everything that a study can hold."""
    monkeypatch.chdir(tmp_path)

    def keep(name):
        detection, folder, all_on = make_detection(), StudyFolder(name), make_space().all_on
        folder.prepare()
        folder.begin(Problem.of(detection, LIMIT), ["python", "train.py"], Sizes.of(detection))
        store, gelu = TrialStore(folder.database, name, make_space(), LIMIT), Config.from_rows(["Gelu+:1:-1"])
        expected = Prediction(
            peak_bytes=9, peak_low=-1, peak_high=9, step=1.1, step_low=1.0, step_high=1.2, fits=0.5
        )
        second = dataclasses.replace(make_trial(gelu, number=1, reference_seconds=0.4), prediction=expected)
        for trial in (make_trial(outcome=Outcome.OVER_LIMIT), second):
            store.add(trial)
            folder.keep_trial(trial, ["python", "train.py"], {}, "step 1\n")
        ranking = Ranking(end=RaceEnd.TIE, rounds=4, confidence=0.99, rivals=("Gelu+",))
        knob = KnobFigures(name="arena", environment={}, available=True, outcome=Outcome.OK, peak_bytes=9)
        result = dataclasses.replace(make_result(trials=2), study=name, knobs=(knob,), raced={gelu.hash: 0.9})
        best = dataclasses.replace(result.best, ranking=ranking)
        folder.plans_file.write_text(emission_of(ORTMODULE).plans_file_text(all_on))
        folder.keep_rejections([Rejection(config=gelu, outcome=Outcome.CRASH, reason="see", excess_bytes=5)])
        folder.keep_confirmed([best])
        standing = {"trial": 1, "description": "Gelu+", "peak_bytes": 700 * MIB, "rounds": [ROUND]}
        folder.write(RACE, {"ranking": None, "standings": [standing], "over_limit": [], "failed": [], "trials": 2})
        KnobFolder(folder).keep(KnobStudy(winner=best))
        keep_batches(folder, BatchRecord(asked=(16, 32)))
        profiled = {"config": codec.to_plain(Config()), "profile": codec.to_plain(make_step("flb", ("a", 0, 2, "8")))}
        folder.write(ANALYSIS, {"peak_bytes": 9, "held_bytes": 5, "profiles": [profiled]})
        folder.finish(dataclasses.replace(result, best=best))
        return folder

    return keep


@pytest.fixture
def run(capsys):
    """Runs a command; gives its exit code, its data and its talk."""

    def run(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return run


def change(file, place, value):
    """Writes another value into a JSON file, at a place like ``best.ranking.rivals``."""
    plain = json.loads(file.read_text())
    *parents, last = (int(part) if part.isdecimal() else part for part in place.split("."))
    functools.reduce(operator.getitem, parents, plain)[last] = value
    file.write_text(json.dumps(plain))


DAMAGED = {
    "brackets": (lambda folder: (folder.path / "study.json").write_text(DEEP), "study.json"),
    "a graph of 10,000 brackets": (
        lambda folder: (folder.path / "study.json").write_text('{"format": 1, "problem": ' + DEEP),
        "study.json",
    ),
    "half a character in the command": (
        lambda folder: change(folder.path / "study.json", "command", ["\ud800"]),
        "'command[0]' holds half a character",
    ),
    "half a character in the name": (
        lambda folder: change(folder.path / "study.json", "study", "\ud800"),
        "'study' holds half a character",
    ),
    "a batch of less than one": (
        lambda folder: change(folder.path / "study.json", "problem.batch", 1e-320),
        "'problem.batch' is 1e-320",
    ),
    "a plan that is none": (
        lambda folder: change(folder.path / "study.json", "problem.plans", ["Gelu+"]),
        "'Gelu+' is no recompute plan",
    ),
    "no versions": (lambda folder: change(folder.path / "result.json", "versions", {}), "result.json"),
    "versions that are no texts": (
        lambda folder: change(folder.path / "result.json", "versions.torch", {"a": []}),
        "'versions['torch']' is",
    ),
    "a peak of 400 digits": (
        lambda folder: change(folder.path / "result.json", "best.peak_bytes", 10**400),
        "401 digits",
    ),
    "seconds of NaN": (
        lambda folder: (folder.path / "result.json").write_text(
            (folder.path / "result.json").read_text().replace('"wall_seconds": 321.5', '"wall_seconds": NaN')
        ),
        "NaN, which is no JSON",
    ),
    "a tie with nobody": (
        lambda folder: change(folder.path / "result.json", "best.ranking.rivals", []),
        "ended as tie with nobody else left",
    ),
    "an answer of a gigabyte": (
        lambda folder: os.truncate(folder.path / "result.json", 1 << 30),
        "larger than 32 MiB",
    ),
    "an answer of empty lists": (
        lambda folder: (folder.path / "result.json").write_text("[" + "[]," * 3_000_000 + "[]]"),
        "more than 2000000 values",
    ),
}


@pytest.mark.parametrize("verb", READING)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_study_is_told_by_every_verb(keep, run, damage, verb):
    """The file is named and what is wrong with it, with a next step, and no data is printed."""
    keep("other")
    spoil, words = DAMAGED[damage]
    spoil(keep("bert"))
    code, out, err = run(*READING[verb])
    assert (code, out) == (SetupError.exit_code, "")
    assert words in err
    assert "restore it, or begin a new study with --study NAME" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("verb", LISTING)
@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_study_hides_no_other(keep, run, damage, verb):
    """Lists have the others as ever, and say of the damaged one that it cannot be read."""
    keep("other")
    spoil, words = DAMAGED[damage]
    spoil(keep("bert"))
    code, out, _ = run(*LISTING[verb])
    assert code == 0
    assert "other" in out
    if verb == "list":
        assert "cannot be read: see below" in out
        assert words in out
    if verb == "list --json":
        notes = {study["study"]: study["note"] for study in json.loads(out)["studies"]}
        assert words in notes["bert"]
        assert "all plans" in notes["other"]
