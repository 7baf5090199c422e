import dataclasses
import functools
import json
import operator
import os
import shutil
import sqlite3

import pytest

from autorecompute.errors import SetupError
from autorecompute.figures import KnobFigures, RaceEnd, Ranking
from autorecompute.measurement import Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.result import Rejection
from autorecompute.studies import StudyFolder
from autorecompute.studies.analysis import ANALYSIS_FILE as ANALYSIS
from autorecompute.studies.records import RACE_FILE as RACE
from autorecompute.studies.records import note_shared
from autorecompute.units import MIB
from stand_ins.printed import has_no_data
from stand_ins.studies import keep_more, keep_study

LIMIT = 900 * MIB
DEEP = "[" * 200_000
SHOW, JSON, REPORT, EMIT = "show bert", "show bert --json", "report bert", "emit bert"
EXPORT = "studies export bert"
VERBS = (SHOW, JSON, REPORT, EMIT, EXPORT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, make_detection, make_trial, make_result, make_step):
    root, gelu = tmp_path_factory.mktemp("whole"), Config.parse(["blocks.*/gelu:drop"])
    expected = Prediction(peak_bytes=9, peak_low=-1, peak_high=9, step=1.1, step_low=1, step_high=1.2, fits=0.5)
    second = dataclasses.replace(make_trial(gelu, number=1, reference_seconds=0.4), prediction=expected)
    ranking = Ranking(end=RaceEnd.TIE, rounds=4, confidence=0.99, rivals=("blocks.*/gelu",))
    knob = KnobFigures(name="arena", outcome=Outcome.OK, peak_bytes=9)
    result = make_result(trials=2, knobs=(knob,), raced={gelu.hash: 0.9}, of_best={"ranking": ranking})
    kept = {"limit_bytes": LIMIT, "trials": (make_trial(outcome=Outcome.OVER_LIMIT), second), "result": result}
    for name in ("bert", "other"):
        folder = keep_study(root, make_detection(), name=name, **kept)
        folder.keep_rejections([Rejection(config=gelu, outcome=Outcome.CRASH, reason="see", excess_bytes=5)])
        keep_more(folder, make_step("flb", ("a", 0, 2, "8")))
    return root


@pytest.fixture
def folder(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "studies")
    return StudyFolder("bert", tmp_path / "studies")


def change(name, place, value):
    def spoil(folder):
        file = folder.path / name
        plain = json.loads(file.read_text())
        *parents, last = (int(part) if part.isdecimal() else part for part in place.split("."))
        functools.reduce(operator.getitem, parents, plain)[last] = value
        file.write_text(json.dumps(plain))

    return spoil


def text(name, content):
    return lambda folder: (folder.path / name).write_text(content)


LISTS = [[]] * 1000
EVERYWHERE = {
    "brackets": (text("study.json", DEEP), "study.json cannot be read: it is nested deeper than 40"),
    "a name of half a character": (change("study.json", "study", "\ud800"), "'study' holds half a character"),
    "a plan that is none": (change("study.json", "problem.plans", ["Gelu"]), "'Gelu' is no choice"),
    "no versions": (change("result.json", "versions", {}), "result.json cannot be read: it describes no Result"),
    "lists for a version": (change("result.json", "versions.torch", LISTS), "'versions['torch']' is [[], [], []"),
    "a tie with nobody": (change("result.json", "best.ranking.rivals", []), "ended as tie with nobody else left"),
    "a script beyond its command": (change("result.json", "script_at", 9), "words in its command, and its script at 9"),
    "a gigabyte": (lambda folder: os.truncate(folder.path / "result.json", 1 << 30), "larger than 32 MiB"),
}


@pytest.mark.parametrize("damage", EVERYWHERE)
def test_every_verb_tells_what_is_damaged(folder, call, damage):
    spoil, words = EVERYWHERE[damage]
    spoil(folder)
    for verb in (*VERBS, "run bert -- no-such-command", "check bert"):
        code, out, err = call(*verb.split())
        assert code == SetupError.exit_code, verb
        assert has_no_data(verb.split(), code, out)
        assert words in err
        assert err.endswith("restore it, or begin a new study with --study NAME.\n")
        assert err.count("\n") == 1


@pytest.mark.parametrize("damage", EVERYWHERE)
def test_a_damaged_study_hides_no_other(folder, call, damage):
    spoil, words = EVERYWHERE[damage]
    spoil(folder)
    code, out, _ = call("studies", "list")
    assert code == 0
    assert "cannot be read: see below" in out
    assert words in out
    notes = {study["study"]: study["note"] for study in json.loads(call("studies", "list", "--json")[1])["studies"]}
    assert words in notes["bert"]
    assert "at batch 32" in notes["other"]
    code, out, _ = call("studies", "prune")
    assert code == 0
    assert "studies/bert/" not in out
    assert "studies/other/" in out


def query(sql):
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
    "no step times": (
        query(TRIAL.format("json_set(value_json, '$.measurement.step_seconds', json('[]'))")),
        "without a peak, samples or step times",
    ),
    "distributions of numbers": (query("UPDATE trial_params SET distribution_json = '5'"), "study.db"),
    "no times": (query("UPDATE trials SET datetime_complete = 'soon'"), "study.db"),
    "trials without end": (
        query(
            "ALTER TABLE trials RENAME TO few; CREATE VIEW trials AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL "
            "SELECT i + 1 FROM n) SELECT n.i AS trial_id, n.i AS number, few.study_id, few.state, few.datetime_start, "
            "few.datetime_complete FROM n, few"
        ),
        "holds more than tables",
    ),
    "a virtual table that is spelt in another way": (
        query(
            "CREATE VIRTUAL TABLE more USING fts5(words); PRAGMA writable_schema = ON; "
            "UPDATE sqlite_master SET sql = replace(sql, 'CREATE VIRTUAL', 'CREATE  VIRTUAL')"
        ),
        "holds more than tables",
    ),
}


@pytest.mark.parametrize("damage", DATABASE)
def test_every_verb_tells_that_a_database_is_damaged(folder, call, damage):
    spoil, words = DATABASE[damage]
    spoil(folder)
    for verb in (SHOW, JSON, REPORT, EXPORT):
        code, out, err = call(*verb.split())
        assert code == SetupError.exit_code, verb
        assert has_no_data(verb.split(), code, out)
        assert f"{folder.database} cannot be used as a study" in err
        assert words in err
        assert err.count("\n") == 1
    assert call("emit", "bert")[0] == call("studies", "list")[0] == call("studies", "prune")[0] == 0


FILES = {
    "a deep race": (text(RACE, DEEP), "race.json cannot be read: it is nested deeper than 40", (EXPORT,)),
    "a shape of 80,000 products": (
        change(ANALYSIS, "profiles.0.profile.tensors.0.shape", ["2"] * 80_000),
        "has the tensor 'a' of 80000 dimensions",
        (REPORT, EXPORT),
    ),
    "a confirmed answer of no time": (
        change("confirmed.json", "confirmed.0.samples_per_second", -1),
        "'['confirmed'][0].samples_per_second' is -1",
        (EXPORT,),
    ),
    "a rejection for no reason": (
        change("rejected.json", "rejected.0.outcome", None),
        "'['rejected'][0].outcome' is null",
        (EXPORT,),
    ),
    "batches below none": (change("batches.json", "asked", [0]), "'asked[0]' is 0", (EXPORT,)),
    "a storage of numbers": (
        lambda folder: folder.write("shared.json", {"study": 5}),
        "'['study']' is 5, not a text",
        (SHOW, EXPORT),
    ),
}


@pytest.mark.parametrize("damage", FILES)
def test_a_damaged_file_is_told_by_those_who_read_it(folder, call, damage):
    spoil, words, verbs = FILES[damage]
    spoil(folder)
    for verb in VERBS:
        code, out, err = call(*verb.split())
        if verb in verbs:
            assert code == SetupError.exit_code, verb
            assert has_no_data(verb.split(), code, out)
            assert words in err
        else:
            assert code == 0, (verb, err)


def test_what_lies_among_the_trials_under_another_name_is_no_trial(folder, call):
    (folder.path / "trials" / "abc").mkdir()
    (folder.path / "trials" / "abc" / "result.json").write_text("{}")
    note_shared(folder, "token", "sqlite:////shared/bert")
    assert [call(*verb.split())[0] for verb in (SHOW, EXPORT, REPORT)] == [0, 0, 0]
