import os
import sqlite3
import struct
import subprocess
import sys
from types import SimpleNamespace

import optuna
import pytest

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder, storage
from autorecompute.studies.storage import TrialStore, read_trials
from autorecompute.units import MIB
from unit.conftest import build_space, build_trial

LIMIT = 900 * MIB
NAME = "bert"


WRITE_AND_DIE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")
connection.execute("UPDATE trial_user_attributes SET value_json = 'gone'")
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n LIMIT 5000) SELECT * FROM n"
connection.execute(f"CREATE TABLE many AS {numbers}")
os.kill(os.getpid(), signal.SIGKILL)
"""
SPACE = build_space()
TRIALS = [
    build_trial(number=0, outcome=Outcome.OOM, message="no memory"),
    build_trial(SPACE.all_on, number=1, peak_bytes=LIMIT, step_seconds=(0.5,)),
    build_trial(
        Config.of(SPACE.plans[:1]), number=2, outcome=Outcome.OVER_LIMIT, peak_bytes=LIMIT + 1, step_seconds=(0.1,)
    ),
    build_trial(Config.of(SPACE.plans[:2]), number=3, peak_bytes=LIMIT - 1, step_seconds=(0.6,)),
    build_trial(Config.parse(["whole model:light"]), number=4, outcome=Outcome.CRASH),
    build_trial(Config.of(SPACE.plans[2:3]), number=5, outcome=Outcome.DIVERGED, peak_bytes=1, losses=(float("inf"),)),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    database = tmp_path_factory.mktemp("finished") / "study.db"
    store = TrialStore(database, NAME, SPACE, LIMIT)
    for trial in TRIALS:
        store.add(trial)
    return database


@pytest.fixture
def database(finished, tmp_path):
    copy = tmp_path / "study.db"
    copy.write_bytes(finished.read_bytes())
    return copy


@pytest.fixture(params=["read", "write"])
def open_it(request):
    """Has the trials of a database read alone, or by a tuning that would go on."""
    return {
        "read": lambda file: read_trials(file, NAME),
        "write": lambda file: TrialStore(file, NAME, SPACE, LIMIT).trials,
    }[request.param]


def test_trials_come_back_in_their_order_and_not_from_another_studys_database(finished, open_it):
    assert open_it(finished) == TRIALS
    with pytest.raises(SetupError, match="cannot be used as a study"):
        read_trials(finished, "gpt")


def test_wall_time_adds_up_over_sessions(tmp_path, monkeypatch):
    times = iter([1000.0, 1005.0, 50.0, 57.0])  # a store is opened, a trial is added; the same after a restart
    monkeypatch.setattr(storage, "time", SimpleNamespace(monotonic=lambda: next(times)))
    TrialStore(tmp_path / "study.db", NAME, SPACE, LIMIT).add(TRIALS[0])
    assert TrialStore(tmp_path / "study.db", NAME, SPACE, LIMIT).seconds == 12.0


def test_optuna_and_its_viewers_see_each_plan_as_a_parameter_and_what_does_not_fit_as_infeasible(finished):
    shown = optuna.load_study(study_name=NAME, storage=f"sqlite:///{finished}")
    is_feasible = [all(value <= 0 for value in trial.constraints.values()) for trial in shown.trials]
    states = [trial.state for trial in shown.trials]
    assert is_feasible[:4] == [False, True, False, True]
    assert states[0] is optuna.trial.TrialState.PRUNED
    assert states[4:] == [optuna.trial.TrialState.FAIL] * 2
    assert shown.best_trial.number == 1
    assert shown.metric_names == ["samples/s"]
    for trial in shown.trials:
        assert trial.system_attrs["constraints"] == [trial.constraints["bytes over the limit"]]
    for ours, theirs in zip(TRIALS, shown.trials, strict=True):
        on = {key for key, value in theirs.params.items() if value and key != "preset"}
        assert on == {plan.id for plan in SPACE.plans_of(ours.config)}


def execute(database, statement):
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()


DAMAGES = {
    "zeros": lambda content: bytes(len(content)),
    "the header alone": lambda content: content[:100],
    "pages overwritten": lambda content: content[:4096] + b"\xa5" * (len(content) - 4096),
    "another class": """UPDATE trial_user_attributes SET value_json = '{"a": 1}' WHERE key = 'trial'""",
    "a trial of someone else": "DELETE FROM trial_user_attributes WHERE key = 'trial'",
    "newer Optuna": "UPDATE alembic_version SET version_num = 'v9.9.9.a'",
    "two versions": "INSERT INTO alembic_version VALUES ('v0.9.0.a')",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_database_or_one_of_something_else_is_refused_and_left_alone(database, open_it, damage):
    if isinstance(damage, str):
        execute(database, damage)
    else:
        database.write_bytes(damage(database.read_bytes()))
    damaged = database.read_bytes()
    with pytest.raises(SetupError, match=r"study\.db cannot be used as a study.*left as it is"):
        open_it(database)
    assert database.read_bytes() == damaged
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize("statement", ["DELETE FROM alembic_version", "DROP TABLE trials", "DELETE FROM version_info"])
def test_a_reader_adds_nothing_to_a_database(database, statement):
    """Optuna would make what is missing."""
    execute(database, statement)
    before = database.read_bytes()
    with pytest.raises(SetupError, match=r"cannot be used as a study.*left as it is"):
        read_trials(database, NAME)
    assert database.read_bytes() == before


def test_a_database_in_use_is_not_called_damaged(database, monkeypatch):
    monkeypatch.setattr("autorecompute.studies.storage.BUSY_TIMEOUT_SECONDS", 0.1)
    monkeypatch.setattr("optuna.storages._rdb.storage.time.sleep", lambda _: None)  # between its five attempts
    store = TrialStore(database, NAME, SPACE, LIMIT)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SetupError) as caught:
        store.add(TRIALS[0])
    other.close()
    assert "restore" not in str(caught.value)
    assert store.trials == TRIALS


def test_a_read_only_disk_is_told_and_can_be_read(finished, small_disk):
    database = small_disk.folder / "study.db"
    database.write_bytes(finished.read_bytes())
    small_disk.forbid_writing()
    with pytest.raises(SetupError, match=r"study\.db cannot be written\. Make it writable"):
        TrialStore(database, NAME, SPACE, LIMIT).add(TRIALS[0])
    with pytest.raises(SetupError, match=r"other\.db cannot be written"):
        TrialStore(database.with_name("other.db"), NAME, SPACE, LIMIT)
    assert read_trials(database, NAME) == TRIALS
    with pytest.raises(SetupError, match="cannot be written: Read-only file system"):
        StudyFolder("gpt", small_disk.folder).prepare()


@pytest.mark.parametrize("name", ["with space", "50%25", "a?b=c#1", "ü@b:c"])
def test_the_database_lies_in_its_folder_whatever_that_is_called(tmp_path, name):
    folder = tmp_path / "only" / name
    folder.mkdir(parents=True)
    TrialStore(folder / "study.db", NAME, SPACE, LIMIT).add(TRIALS[0])
    assert list(folder.iterdir()) == [folder / "study.db"]
    assert list(folder.parent.iterdir()) == [folder]
    assert read_trials(folder / "study.db", NAME) == TRIALS[:1]


def test_a_journal_that_names_another_file_is_refused(database, tmp_path, open_it):
    """SQLite keeps such a journal of a transaction over several databases, and would delete the file that it names."""
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    magic, sector, name = bytes.fromhex("d9d505f920a163d7"), 512, os.fsencode(thesis)
    page = struct.unpack(">H", database.read_bytes()[16:18])[0]
    head = magic + struct.pack(">5I", 0, 1, database.stat().st_size // page, sector, page)
    end = struct.pack(">I", 2**30 // page + 1) + name + struct.pack(">2I", len(name), sum(name)) + magic
    database.with_name("study.db-journal").write_bytes(head.ljust(sector, b"\0") + end)
    with pytest.raises(SetupError, match=r"study\.db-journal names another file"):
        open_it(database)
    assert thesis.exists()


@pytest.mark.parametrize(
    ("ending", "make", "words"),
    [
        # Optuna makes its tables in whatever database it opens.
        *((ending, lambda path: path.symlink_to("cookies.db"), "is a link") for ending in ("", *storage.BESIDE)),
        *((ending, make, "is no file") for make in (os.mkfifo, os.mkdir) for ending in storage.BESIDE),
    ],
)
def test_a_database_and_what_lies_beside_it_are_files(database, open_it, ending, make, words):
    (database.parent / "cookies.db").touch()
    place = database.with_name(f"study.db{ending}")
    place.unlink(missing_ok=True)
    make(place)
    with pytest.raises(SetupError, match=rf"study\.db{ending} {words}"):
        open_it(database)
    assert (database.parent / "cookies.db").read_bytes() == b""


def test_what_a_killed_process_was_writing_is_undone(database, open_it):
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(database)], check=False)
    assert database.with_name("study.db-journal").stat().st_size
    assert open_it(database) == TRIALS
