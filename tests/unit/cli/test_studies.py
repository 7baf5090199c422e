import dataclasses
import functools
import gzip
import json
import operator
import os
import pty
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.errors import SetupError, UsageError
from autorecompute.figures import KnobFigures, RaceEnd, Ranking
from autorecompute.measurement import Outcome, Prediction
from autorecompute.plans import Config
from autorecompute.result import Rejection
from autorecompute.studies import StudyFolder
from autorecompute.studies.analysis import ANALYSIS_FILE as ANALYSIS
from autorecompute.studies.importing import DRAFT_PREFIX
from autorecompute.studies.records import RACE_FILE as RACE
from autorecompute.studies.records import note_shared
from autorecompute.units import MIB
from fake_backend import program
from stand_ins.printed import has_no_data
from stand_ins.studies import keep_more, keep_study


@pytest.fixture
def keep(begin, make_trial, make_result):
    def keep(name="bert", *, trials=1, is_finished=True, **changes):
        made = [make_trial(number=number) for number in range(trials)]
        folder = begin(name, make_result() if is_finished else None, made, **changes)
        (folder.workers / "01.log").write_text("x" * 1000)
        return folder

    return keep


def test_the_list_is_that_of_show_which_tells_each_part_of_the_identity(keep, call):
    """A name may end as the shell completes it."""
    keep()
    assert call("studies", "list") == call("show")
    assert call("studies", "list", "--json") == call("show", "--json")
    assert call("studies", "show", "bert") == call("show", "bert") == call("show", "bert/")
    assert call("studies", "export", "bert/") == call("studies", "export", "bert")
    out = call("show", "bert")[1]
    identity = json.loads(call("show", "bert", "--json")[1])["identity"]
    assert set(identity) >= {*("graph", "plans", "batch", "limit", "device", "device memory", "torch", "fake", "d1")}
    assert all(value in out for value in identity.values())
    keep("again")
    assert "same problem" in call("show", "again", "--why")[1]


@pytest.mark.parametrize(
    ("change", "part", "has_same_plans"),
    [({"batch": 64}, "batch", True), ({"graph": "ffff"}, "graph", True), ({"plans": ()}, "plans", False)],
)
def test_why_names_the_part_that_differs_from_the_nearest_study(keep, call, change, part, has_same_plans):
    keep()
    keep("other", **change)
    out = call("show", "other", "--why")[1]
    nearest = json.loads(call("show", "other", "--why", "--json")[1])["nearest"]
    assert (nearest["study"], nearest["has_same_plans"]) == ("bert", has_same_plans)
    assert [difference["part"] for difference in nearest["differences"]] == [part]
    assert "nearest: study bert" in out
    assert nearest["differences"][0]["there"] in out
    assert ("starts from" in out) == has_same_plans


def test_an_export_comes_back_from_a_compressed_file_and_under_another_name_where_none_can_have_its_own(
    keep, call, tmp_path
):
    keep()
    assert call("studies", "export", "bert", "-o", "bert.jsonl.gz")[0] == 0
    assert (tmp_path / "bert.jsonl.gz").read_bytes()[:8] == b"\x1f\x8b\x08" + bytes(5)  # no date: the same each time
    assert call("studies", "import", "bert.jsonl.gz", "--study", "")[0] == UsageError.exit_code
    before = call("studies", "export", "bert")[1]
    assert call("studies", "import", "bert.jsonl.gz", "--force")[0] == 0
    assert call("studies", "export", "bert")[1] == before
    Path("a.jsonl").write_text(before.replace('"study":"bert"', '"study":"../x"'))
    assert "--study NAME" in call("studies", "import", "a.jsonl")[2]
    assert call("studies", "import", "a.jsonl", "--study", "x")[0] == 0


def test_the_page_goes_into_the_studys_folder_and_is_made_anew(keep, call):
    page = keep().path / "report.html"
    assert "page: autorecompute report bert\n" in call("show", "bert")[1]
    assert call("report", "bert") == (0, f"{page}\n", "")
    page.write_text("old")
    assert call("report", "bert")[0] == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert f"page: {page}" in call("show", "bert")[1]


@pytest.mark.parametrize(("file", "is_compressed"), [("-", True), ("/dev/stdin", False)])
def test_an_archive_can_be_piped_in(keep, call, file, is_compressed):
    keep()
    archive = call("studies", "export", "bert")[1].encode()
    command = [sys.executable, program.__file__, "studies", "import", file, "--study", "piped"]
    done = subprocess.run(
        command, input=gzip.compress(archive) if is_compressed else archive, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert call("studies", "export", "piped")[1] == archive.decode().replace('"study":"bert"', '"study":"piped"')


def test_deleting_removes_all_that_was_named_or_nothing(keep, call):
    for name in ("bert", "gpt", "vit"):
        keep(name)
    (Path("studies") / "gpt" / "study.json").write_text("{")  # what is broken may go, too
    assert call("studies", "delete", "bert", "nope", "--force")[0] == UsageError.exit_code
    assert Path("studies/bert").is_dir()
    code, out, err = call("studies", "delete", "bert", "gpt", "--force")
    assert (code, out) == (0, "")
    assert "bert" in err
    assert [path.name for path in Path("studies").iterdir()] == ["vit"]


def assert_refused(call, verb, words):
    code, out, err = call(*verb.split())
    assert code == SetupError.exit_code, verb
    assert has_no_data(verb.split(), code, out)
    assert words in err
    return err


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_study_that_lost_its_trials_is_told(keep, call, is_finished):
    keep(is_finished=is_finished).database.unlink()
    for verb in ("show bert", "show bert --json", "studies export bert", "report bert"):
        assert_refused(call, verb, "study.db is missing")
    assert "cannot be read" in call("show")[1]
    assert "study.db is missing" in json.loads(call("show", "--json")[1])["studies"][0]["note"]


@pytest.mark.parametrize(("answer", "code", "stays"), [(b"y\n", 0, False), (b"n\n", 0, True), (None, 2, True)])
def test_only_a_yes_on_a_terminal_removes(keep, tmp_path, answer, code, stays):
    """Without a terminal there is nobody to ask, and --force has to be given."""
    folder = keep(trials=0)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer or b"")
        command = [sys.executable, "-m", "autorecompute", "studies", "delete", "bert"]
        asked = subprocess.DEVNULL if answer is None else theirs
        done = subprocess.run(command, cwd=tmp_path, stdin=asked, capture_output=True, text=True, check=False)
    finally:
        os.close(ours)
        os.close(theirs)
    assert done.returncode == code
    assert ("--force" in done.stderr) == (answer is None)
    assert folder.path.is_dir() == stays


def test_a_study_in_use_is_neither_deleted_nor_replaced_nor_pruned(keep, call):
    folder = keep()
    assert call("studies", "export", "bert", "-o", "bert.jsonl")[0] == 0
    hold = f"import sys; file = open({str(folder.workers / '01.log')!r}); print('open', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        holder.stdout.readline()
        for verb in (("delete", "bert"), ("import", "bert.jsonl")):
            code, _, err = call("studies", *verb, "--force")
            assert code == UsageError.exit_code
            assert f"Process {holder.pid} is using" in err
        assert call("studies", "prune")[1] == ""
    assert (folder.workers / "01.log").exists()


def test_pruning_leaves_what_reuse_needs(keep, call):
    """Output of finished studies, empty studies and abandoned drafts go; answers, trials and what goes on stay."""
    finished, open_, empty = keep(), keep("gpt", is_finished=False), keep("new", trials=0, is_finished=False)
    gone = finished.path.parent / f"{DRAFT_PREFIX}4194999-x"
    gone.mkdir()
    for folder in (finished, open_):
        (folder.path / "report.html").write_text("with links to logs")
    exported = call("studies", "export", "bert")[1]
    dry = call("studies", "prune", "--dry-run")
    assert "would free" in dry[2]
    assert finished.workers.joinpath("01.log").exists()
    code, out, err = call("studies", "prune")
    assert (code, out) == (0, dry[1])
    assert "freed" in err
    assert not list(finished.workers.iterdir())
    assert not finished.trial(0).joinpath("output.log").exists()
    assert finished.trial(0).joinpath("result.json").exists()
    assert open_.workers.joinpath("01.log").exists()
    assert not empty.path.exists()
    assert not gone.exists()
    assert [(folder.path / "report.html").exists() for folder in (finished, open_)] == [False, True]
    assert call("studies", "export", "bert")[1] == exported
    assert call("studies", "prune")[1] == ""


def test_a_shared_study_whose_worker_was_killed_is_neither_exported_nor_pruned(keep, call, make_trial):
    """What it measured is in the storage."""
    folder = keep(trials=0, is_finished=False)
    note_shared(folder, "token", "sqlite:////shared/bert")
    folder.keep_trial(make_trial(), ["python", "train.py"], {}, "step 1\n")
    out = call("show", "bert")[1]
    assert "its trials are in sqlite:////shared/bert" in out
    assert "with its --storage" in out
    assert "no answer yet; shared" in call("show", "--json")[1]
    code, out, err = call("studies", "export", "bert")
    assert (code, out) == (UsageError.exit_code, "")
    assert "its trials are in sqlite:////shared/bert" in err
    assert call("studies", "prune")[:2] == (0, "")
    assert folder.trial(0).is_dir()


def test_a_shared_study_whose_worker_has_ended_says_where_else_it_is(keep, call):
    note_shared(keep(), "token", "sqlite:///\x1b]0;title\x07\nno answer yet")
    out = call("show", "bert")[1]
    assert "shared in sqlite:///\\x1b]0;title\\x07\\nno answer yet\n" in out
    assert "its trials are in" not in out
    assert call("studies", "export", "bert")[0] == 0


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
def test_every_verb_tells_what_is_damaged_which_hides_no_other_study(folder, call, damage):
    spoil, words = EVERYWHERE[damage]
    spoil(folder)
    for verb in (*VERBS, "run bert -- no-such-command", "check bert"):
        err = assert_refused(call, verb, words)
        assert err.endswith("restore it, or begin a new study with --study NAME.\n")
        assert err.count("\n") == 1
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
        err = assert_refused(call, verb, words)
        assert f"{folder.database} cannot be used as a study" in err
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
        if verb in verbs:
            assert_refused(call, verb, words)
        else:
            assert call(*verb.split())[0] == 0, verb


def test_what_lies_among_the_trials_under_another_name_is_no_trial(folder, call):
    (folder.path / "trials" / "abc").mkdir()
    (folder.path / "trials" / "abc" / "result.json").write_text("{}")
    note_shared(folder, "token", "sqlite:////shared/bert")
    assert [call(*verb.split())[0] for verb in (SHOW, EXPORT, REPORT)] == [0, 0, 0]
