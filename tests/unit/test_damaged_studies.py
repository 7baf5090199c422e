"""A study that was damaged, or written by somebody else, ends in a sentence, whatever reads it."""

import dataclasses
import functools
import json
import operator
import os
import shutil
import sqlite3

import pytest

from autorecompute import codec
from autorecompute.cli import main
from autorecompute.errors import SetupError
from autorecompute.figures import KnobFigures
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.prediction import Prediction
from autorecompute.ranking import RaceEnd, Ranking
from autorecompute.result import Rejection
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.analysis import FILE as ANALYSIS
from autorecompute.studies.batch_studies import BatchRecord, keep_batches
from autorecompute.studies.race_record import FILE as RACE
from autorecompute.studies.sharing.mirror import share
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB
from stand_ins.printed import has_no_data

LIMIT = 900 * MIB
DEEP = "[" * 200_000
ROUND = {"step_seconds": [0.5], "reference_seconds": [0.4], "marks": []}
SHOW, JSON, REPORT = ["show", "bert"], ["show", "bert", "--json"], ["report", "bert"]
EMIT, RUN, CHECK = ["emit", "bert"], ["run", "bert", "--", "true"], ["check", "bert"]
EXPORT, COMPARE = ["studies", "export", "bert"], ["studies", "compare", "bert", "other"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_detection, make_space, make_trial, make_result, make_step):  # noqa: PLR0917
    """A folder with two studies which have everything that a study can have."""
    root = tmp_path_factory.mktemp("whole")
    for name in ("bert", "other"):
        detection, folder = make_detection(), StudyFolder(name, root)
        folder.prepare()
        folder.begin(Problem.of(detection, LIMIT), ["python", "train.py"], Sizes.of(detection))
        store, gelu = TrialStore(folder.database, name, make_space(), LIMIT), Config.parse(["blocks.*/gelu:drop"])
        expected = Prediction(peak_bytes=9, peak_low=-1, peak_high=9, step=1.1, step_low=1, step_high=1.2, fits=0.5)
        second = dataclasses.replace(make_trial(gelu, number=1, reference_seconds=0.4), prediction=expected)
        for trial in (make_trial(outcome=Outcome.OVER_LIMIT), second):
            store.add(trial)
            folder.keep_trial(trial, ["python", "train.py"], {}, "step 1\n")
        ranking = Ranking(end=RaceEnd.TIE, rounds=4, confidence=0.99, rivals=("blocks.*/gelu",))
        knob = KnobFigures(name="arena", outcome=Outcome.OK, peak_bytes=9)
        result = dataclasses.replace(make_result(trials=2), study=name, knobs=(knob,), raced={gelu.hash: 0.9})
        best = dataclasses.replace(result.best, ranking=ranking)
        folder.keep_rejections([Rejection(config=gelu, outcome=Outcome.CRASH, reason="see", excess_bytes=5)])
        folder.keep_confirmed([best])
        standing = {"trial": 1, "description": "blocks.*/gelu", "peak_bytes": 700 * MIB, "rounds": [ROUND]}
        folder.write(RACE, {"ranking": None, "standings": [standing], "over_limit": [], "failed": [], "trials": 2})
        keep_batches(folder, BatchRecord(asked=(16, 32)))
        profiled = {"config": codec.to_plain(Config()), "profile": codec.to_plain(make_step("flb", ("a", 0, 2, "8")))}
        folder.write(ANALYSIS, {"peak_bytes": 9, "held_bytes": 5, "profiles": [profiled]})
        folder.finish(dataclasses.replace(result, best=best))
    return root


@pytest.fixture
def folder(whole, tmp_path, monkeypatch):
    """The first of the two, in a working directory of its own."""
    shutil.copytree(whole, tmp_path / "studies")
    monkeypatch.chdir(tmp_path)
    return StudyFolder("bert")


@pytest.fixture
def run(capsys):
    """Runs a command; gives its exit code, its data and its talk."""

    def run(arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return run


def change(name, place, value):
    """What writes another value into a JSON file of a study, at a place like ``best.ranking.rivals``."""

    def spoil(folder):
        file = folder.path / name
        plain = json.loads(file.read_text())
        *parents, last = (int(part) if part.isdecimal() else part for part in place.split("."))
        functools.reduce(operator.getitem, parents, plain)[last] = value
        file.write_text(json.dumps(plain))

    return spoil


def text(name, content):
    """What writes a file of a study anew."""
    return lambda folder: (folder.path / name).write_text(content)


LISTS = [[]] * 1000
EVERYWHERE = {
    "brackets": (text("study.json", DEEP), "study.json cannot be read: it is nested deeper than 40"),
    "a deep problem": (text("study.json", '{"format": 1, "problem": ' + DEEP), "nested deeper than 40"),
    "a command of half a character": (change("study.json", "command", ["\ud800"]), "'command[0]' holds half a char"),
    "a name of half a character": (change("study.json", "study", "\ud800"), "'study' holds half a character"),
    "a tiny batch": (change("study.json", "problem.batch", 1e-320), "'problem.batch' is 1e-320, not a whole number"),
    "a plan that is none": (change("study.json", "problem.plans", ["Gelu"]), "'Gelu' is no choice"),
    "no versions": (change("result.json", "versions", {}), "result.json cannot be read: it describes no Result"),
    "lists for a version": (change("result.json", "versions.torch", LISTS), "'versions['torch']' is [[], [], []"),
    "a peak of 400 digits": (change("result.json", "best.peak_bytes", 10**399), "a number of 400 digits"),
    "seconds of NaN": (change("result.json", "wall_seconds", float("nan")), "NaN, which is no JSON"),
    "seconds without end": (change("result.json", "wall_seconds", 2.0**59), "'wall_seconds' is 5.764607523034235e+17"),
    "a tie with nobody": (change("result.json", "best.ranking.rivals", []), "ended as tie with nobody else left"),
    "a script beyond its command": (change("result.json", "script_at", 9), "words in its command, and its script at 9"),
    "a gigabyte": (lambda folder: os.truncate(folder.path / "result.json", 1 << 30), "larger than 32 MiB"),
    "empty lists": (text("result.json", "[" + "[]," * 3_000_000 + "[]]"), "more than 2000000 values"),
}
"""Damages to what every verb reads, and the words for them."""


@pytest.mark.parametrize("damage", EVERYWHERE)
def test_every_verb_tells_what_is_damaged(folder, run, damage):
    """The file and the field are named on one line with a next step, and no data is printed."""
    spoil, words = EVERYWHERE[damage]
    spoil(folder)
    for verb in (SHOW, JSON, REPORT, EMIT, RUN, CHECK, EXPORT, COMPARE):
        code, out, err = run(verb)
        assert code == SetupError.exit_code, verb
        assert has_no_data(verb, code, out)
        assert words in err
        assert err.endswith("restore it, or begin a new study with --study NAME.\n")
        assert err.count("\n") == 1


@pytest.mark.parametrize("damage", EVERYWHERE)
def test_a_damaged_study_hides_no_other(folder, run, damage):
    """Lists have the others as ever, and say of this one what is wrong; pruning leaves it alone."""
    spoil, words = EVERYWHERE[damage]
    spoil(folder)
    code, out, _ = run(["studies", "list"])
    assert code == 0
    assert "cannot be read: see below" in out
    assert words in out
    code, out, _ = run(["studies", "list", "--json"])
    notes = {study["study"]: study["note"] for study in json.loads(out)["studies"]}
    assert code == 0
    assert words in notes["bert"]
    assert "at batch 32" in notes["other"]
    code, out, _ = run(["studies", "prune"])
    assert code == 0
    assert "studies/bert/" not in out
    assert "studies/other/" in out


def query(sql):
    """What changes the database of a study."""

    def spoil(folder):
        database = sqlite3.connect(folder.database)
        database.executescript(sql)
        database.close()

    return spoil


TRIAL = "UPDATE trial_user_attributes SET value_json = {} WHERE key = 'trial'"
DATABASE = {
    "an unknown state": (query("UPDATE trials SET state = 'FOO'"), "LookupError"),
    "a trial of words": (query(TRIAL.format("'\"words\"'")), "describes no Trial: it is 'words', not an object"),
    "a trial of brackets": (query(TRIAL.format(f"'{DEEP}'")), "RecursionError"),
    "a trial that is no JSON": (query(TRIAL.format("'{'")), "JSONDecodeError"),
    "a trial of nothing": (query("DELETE FROM trial_user_attributes"), "KeyError"),
    "no step times": (
        query(TRIAL.format("json_set(value_json, '$.measurement.step_seconds', json('[]'))")),
        "without a peak, samples or step times",
    ),
    "steps without end": (
        query(TRIAL.format("json_set(value_json, '$.measurement.step_seconds[0]', 576460752303423488.0)")),
        "'measurement.step_seconds[0]' is 5.7646",
    ),
    "a reason of half a character": (
        query(TRIAL.format("json_set(value_json, '$.reason', json('\"\\ud800\"'))")),
        "'reason' holds half a character",
    ),
    "distributions of numbers": (query("UPDATE trial_params SET distribution_json = '5'"), "study.db"),
    "no times": (query("UPDATE trials SET datetime_complete = 'soon'"), "study.db"),
    "another version": (query("UPDATE alembic_version SET version_num = 'x'"), "study.db"),
    "no database": (lambda folder: folder.database.write_text("hello"), "SQLITE_NOTADB"),
    "trials without end": (
        query(
            "ALTER TABLE trials RENAME TO few; CREATE VIEW trials AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n) SELECT n.i AS trial_id, n.i AS number, few.study_id, few.state, few.datetime_start, "
            "few.datetime_complete FROM n, few"
        ),
        "holds more than tables",
    ),
}
"""Damages to a database, and the words for them."""


@pytest.mark.parametrize("damage", DATABASE)
def test_every_verb_tells_that_a_database_is_damaged(folder, run, damage):
    """What Optuna meets in a file that it did not write so ends in a sentence, too; what needs no trials goes on."""
    spoil, words = DATABASE[damage]
    spoil(folder)
    for verb in (SHOW, JSON, REPORT, EXPORT, COMPARE):
        code, out, err = run(verb)
        assert code == SetupError.exit_code, verb
        assert has_no_data(verb, code, out)
        assert f"{folder.database} cannot be used as a study" in err
        assert words in err
        assert err.count("\n") == 1
    assert run(EMIT)[0] == run(["studies", "list"])[0] == run(["studies", "prune"])[0] == 0


FILES = {
    "a deep race": (text(RACE, DEEP), "race.json cannot be read: it is nested deeper than 40", (EXPORT, COMPARE)),
    "a race without steps": (
        change(RACE, "standings.0.rounds.0.step_seconds", []),
        "is a round without a timed step",
        (EXPORT, COMPARE),
    ),
    "a shape of 80,000 products": (
        change(ANALYSIS, "profiles.0.profile.tensors.0.shape", ["2"] * 80_000),
        "has the tensor 'a' of 80000 dimensions",
        (REPORT, EXPORT, COMPARE),
    ),
    "half an analysis": (text(ANALYSIS, "{"), "analysis.json cannot be read: it is no JSON", (REPORT, EXPORT, COMPARE)),
    "a confirmed answer of no time": (
        change("confirmed.json", "confirmed.0.samples_per_second", -1),
        "'['confirmed'][0].samples_per_second' is -1",
        (EXPORT, COMPARE),
    ),
    "a rejection for no reason": (
        change("rejected.json", "rejected.0.outcome", None),
        "'['rejected'][0].outcome' is null",
        (EXPORT, COMPARE),
    ),
    "batches below none": (change("batches.json", "asked", [0]), "'asked[0]' is 0", (EXPORT, COMPARE)),
    "a storage of numbers": (
        lambda folder: folder.write("shared.json", {"study": 5}),
        "'['study']' is 5, not a text",
        (SHOW, EXPORT),
    ),
}
"""Damages to other files, the words for them, and who reads them."""


@pytest.mark.parametrize("damage", FILES)
def test_a_damaged_file_is_told_by_those_who_read_it(folder, run, damage):
    """Verbs that need the file end in a sentence about it, and the others do as ever."""
    spoil, words, verbs = FILES[damage]
    spoil(folder)
    for verb in (SHOW, JSON, REPORT, EMIT, EXPORT, COMPARE):
        code, out, err = run(verb)
        if verb in verbs:
            assert code == SetupError.exit_code, verb
            assert has_no_data(verb, code, out)
            assert words in err
        else:
            assert code == 0, (verb, err)


def test_a_folder_that_is_no_trials_does_not_count_as_one(folder, run):
    """What lies among the trials under another name is not ours."""
    (folder.path / "trials" / "abc").mkdir()
    (folder.path / "trials" / "abc" / "result.json").write_text("{}")
    share(folder, "token", "journal:/shared/bert")
    for verb in (SHOW, EXPORT, REPORT):
        assert run(verb)[0] == 0
