"""The trials of a study on disk: kept when everything else goes wrong, and readable by Optuna itself."""

import json
import signal
import sqlite3
import subprocess
import sys

import optuna
import pytest

from autorecompute import codec
from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies.storage import TrialStore, read_trials
from autorecompute.units import MIB

LIMIT = 900 * MIB
NAME = "bert"

ADD_AND_DIE = """
import json, os, signal, sys
from pathlib import Path
from autorecompute import codec
from autorecompute.measurement import Trial
from autorecompute.plans import Space
from autorecompute.studies.storage import TrialStore

work = json.load(sys.stdin)
space = codec.from_plain(work["space"], Space)
store = TrialStore(Path(work["database"]), work["name"], space, work["limit"])
for plain in work["trials"]:
    store.add(codec.from_plain(plain, Trial))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def space(make_space):
    """The plans of the study."""
    return make_space()


@pytest.fixture(scope="module")
def trials(space, make_trial):
    """A trial of each kind."""
    plans = space.plans
    return [
        make_trial(number=0, outcome=Outcome.OOM, message="no memory"),
        make_trial(space.all_on, number=1, peak_bytes=LIMIT, step_seconds=(0.5,)),
        make_trial(
            Config.of(plans[:1]), number=2, outcome=Outcome.OVER_LIMIT, peak_bytes=LIMIT + 1, step_seconds=(0.1,)
        ),
        make_trial(Config.of(plans[:2]), number=3, peak_bytes=LIMIT - 1, step_seconds=(0.6,)),
        make_trial(Config.parse(["whole model:light"]), number=4, outcome=Outcome.CRASH),
        make_trial(Config.of(plans[2:3]), number=5, outcome=Outcome.DIVERGED, peak_bytes=1, losses=(float("inf"),)),
    ]


@pytest.fixture(scope="module")
def finished(space, trials, tmp_path_factory):
    """A database with these trials, for reading only."""
    database = tmp_path_factory.mktemp("finished") / "study.db"
    store = TrialStore(database, NAME, space, LIMIT)
    for trial in trials:
        store.add(trial)
    return database


@pytest.fixture
def database(finished, tmp_path):
    """A database with these trials, for a test to change."""
    copy = tmp_path / "study.db"
    copy.write_bytes(finished.read_bytes())
    return copy


def test_trials_come_back_in_their_order(finished, space, trials):
    """Another session and a reader see every trial as it was added."""
    assert TrialStore(finished, NAME, space, LIMIT).trials == trials
    assert read_trials(finished, NAME) == trials


def test_a_trial_survives_the_death_of_the_tuner(tmp_path, space, trials):
    """A process killed right after it added trials has lost none of them, and the next session goes on."""
    database = tmp_path / "study.db"
    work = {
        "database": str(database),
        "name": NAME,
        "limit": LIMIT,
        "space": codec.to_plain(space),
        "trials": codec.to_plain(trials[:2]),
    }
    killed = subprocess.run([sys.executable, "-c", ADD_AND_DIE], input=json.dumps(work), text=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    store = TrialStore(database, NAME, space, LIMIT)
    assert store.trials == trials[:2]
    store.add(trials[2])
    assert read_trials(database, NAME) == store.trials == trials[:3]


def test_wall_time_adds_up_over_sessions(database, space, trials):
    """The time of earlier sessions is part of a study's time."""
    before = TrialStore(database, NAME, space, LIMIT)
    before.add(trials[0])
    spent = before.seconds
    assert 0 < spent <= TrialStore(database, NAME, space, LIMIT).seconds + before.seconds - spent


def test_optuna_sees_what_does_not_fit_as_infeasible(finished):
    """What ran out of memory is pruned and violates the constraint, what is over the limit violates it too."""
    study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{finished}")
    is_feasible = [all(value <= 0 for value in trial.constraints.values()) for trial in study.trials]
    states = [trial.state for trial in study.trials]
    assert is_feasible[:4] == [False, True, False, True]
    assert states[0] is optuna.trial.TrialState.PRUNED
    assert states[4:] == [optuna.trial.TrialState.FAIL] * 2


def test_optunas_best_trial_fits(finished):
    """Optuna's best trial is the fastest within the limit, not the fastest."""
    study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{finished}")
    assert study.best_trial.number == 1


def test_viewers_are_told_what_does_not_fit(finished):
    """The value has a name, and the constraint also stands where viewers look for it, with the same sign."""
    study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{finished}")
    assert study.metric_names == ["samples/s"]
    for trial in study.trials:
        assert trial.system_attrs["constraints"] == [trial.constraints["bytes over the limit"]]


def test_optuna_sees_each_plan_as_a_parameter(finished, space, trials):
    """The parameters tell which plans were on, and which preset."""
    study = optuna.load_study(study_name=NAME, storage=f"sqlite:///{finished}")
    for ours, theirs in zip(trials, study.trials, strict=True):
        on = {key for key, value in theirs.params.items() if value and key != "preset"}
        assert on == {plan.id for plan in space.plans_of(ours.config)}


DAMAGES = {
    "text": lambda _: b"this is no database\n" * 1000,
    "zeros": lambda content: bytes(len(content)),
    "the header alone": lambda content: content[:100],
    "cut in half": lambda content: content[: len(content) // 2],
    "pages overwritten": lambda content: content[:4096] + b"\xa5" * (len(content) - 4096),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_refused_and_left_alone(database, space, damage):
    """What is no study any more ends in a sentence that names the file, which keeps every byte."""
    database.write_bytes(DAMAGES[damage](database.read_bytes()))
    damaged = database.read_bytes()
    for read in (lambda: TrialStore(database, NAME, space, LIMIT), lambda: read_trials(database, NAME)):
        with pytest.raises(SetupError, match=r"study\.db cannot be used as a study.*left as it is"):
            read()
        assert database.read_bytes() == damaged
    assert list(database.parent.iterdir()) == [database]


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(
            """UPDATE trial_user_attributes SET value_json = '{"a": 1}' WHERE key = 'trial'""", id="another class"
        ),
        pytest.param("UPDATE trial_user_attributes SET value_json = '{' WHERE key = 'trial'", id="not JSON"),
        pytest.param("""UPDATE trial_user_attributes SET value_json = '"x"' WHERE key = 'trial'""", id="text"),
        pytest.param("DELETE FROM trial_user_attributes WHERE key = 'trial'", id="a trial of someone else"),
        pytest.param("UPDATE alembic_version SET version_num = 'v9.9.9.a'", id="newer Optuna"),
        pytest.param("INSERT INTO alembic_version VALUES ('v0.9.0.a')", id="two versions"),
    ],
)
def test_a_database_of_something_else_is_refused(database, space, statement):
    """A sound SQLite file that does not hold our trials ends in a sentence, not in a traceback."""
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()
    for read in (lambda: TrialStore(database, NAME, space, LIMIT), lambda: read_trials(database, NAME)):
        with pytest.raises(SetupError, match=r"study\.db cannot be used as a study"):
            read()


def test_no_database_has_no_trials(tmp_path):
    """Reading a study that has no database yet gives no trials, and makes no file."""
    assert read_trials(tmp_path / "study.db", NAME) == []
    assert list(tmp_path.iterdir()) == []


def test_another_studys_database_is_refused_for_reading(finished):
    """A database without a study of this name is no study."""
    with pytest.raises(SetupError, match="cannot be used as a study"):
        read_trials(finished, "gpt")


@pytest.fixture
def impatient(monkeypatch):
    """Lets Optuna try again at once where it would wait a second or two between its five attempts."""
    monkeypatch.setattr("optuna.storages._rdb.storage.time.sleep", lambda _: None)


@pytest.mark.usefixtures("impatient")
def test_a_database_in_use_is_not_called_damaged(database, space, trials, monkeypatch):
    """While another process holds the database, the sentence does not send its owner to a backup."""
    monkeypatch.setattr("autorecompute.studies.database.BUSY_TIMEOUT_SECONDS", 0.1)
    store = TrialStore(database, NAME, space, LIMIT)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SetupError) as caught:
        store.add(trials[0])
    other.close()
    assert "restore" not in str(caught.value)
    assert store.trials == trials


@pytest.mark.usefixtures("impatient")
def test_a_full_disk_loses_no_trial(small_disk, space, trials):
    """When the disk is full the next step is told, every trial that was added is there, and more fit afterwards."""
    database = small_disk.folder / "study.db"
    store = TrialStore(database, NAME, space, LIMIT)
    store.add(trials[0])
    small_disk.fill()
    with pytest.raises(SetupError, match=r"disk is full at .*study\.db.*free some space and run the same command"):
        list(map(store.add, [trials[1]] * 100))
    small_disk.free()
    kept = read_trials(database, NAME)
    assert kept[: len(store.trials)] == store.trials
    again = TrialStore(database, NAME, space, LIMIT)
    again.add(trials[2])
    assert read_trials(database, NAME) == [*kept, trials[2]]


@pytest.fixture
def read_only(finished, small_disk):
    """A database with these trials on a disk that cannot be written."""
    database = small_disk.folder / "study.db"
    database.write_bytes(finished.read_bytes())
    small_disk.forbid_writing()
    return database


def test_a_read_only_disk_is_told(read_only, space, trials):
    """Nothing can be added or begun where nothing can be written, and the sentence says so."""
    with pytest.raises(SetupError, match=r"study\.db cannot be written\. Make it writable"):
        TrialStore(read_only, NAME, space, LIMIT).add(trials[0])
    with pytest.raises(SetupError, match=r"other\.db cannot be written"):
        TrialStore(read_only.with_name("other.db"), NAME, space, LIMIT)


def test_a_study_on_a_read_only_disk_can_be_shown(read_only, trials):
    """Reading trials writes nothing."""
    assert read_trials(read_only, NAME) == trials


def test_a_place_below_a_file_is_told(tmp_path, space):
    """A folder that is a file ends in a sentence."""
    (tmp_path / "bert").write_text("not a folder")
    with pytest.raises(SetupError, match="cannot be written"):
        TrialStore(tmp_path / "bert" / "study.db", NAME, space, LIMIT)


@pytest.mark.parametrize("name", ["with space", "50%25", "what?", "a?b=c", "#1", "ü", "a@b:c"])
def test_the_database_lies_in_its_folder_whatever_that_is_called(tmp_path, space, trials, name):
    """Signs that mean something in a URL are letters in a path."""
    folder = tmp_path / "only" / name
    folder.mkdir(parents=True)
    TrialStore(folder / "study.db", NAME, space, LIMIT).add(trials[0])
    assert list(folder.iterdir()) == [folder / "study.db"]
    assert list(folder.parent.iterdir()) == [folder]
    assert read_trials(folder / "study.db", NAME) == trials[:1]
