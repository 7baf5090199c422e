"""What ``--storage`` and its variable say before anything is tuned: no password, nothing left behind."""

import os

import optuna
import pytest

from autorecompute.cli import main
from autorecompute.cli.tune import STORAGE_VARIABLE
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.sharing import SharedStudy, parse_storage
from autorecompute.studies.sharing.journal import open_journal
from autorecompute.studies.sharing.mirror import share
from autorecompute.studies.tuned import Tuned


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--storage", "mysql://ada:s3cr3t@host/db"], "journal:PATH or postgresql://"),
        (["--storage", "postgresql://ada:s3cr3t@127.0.0.1:1/db"], "postgresql://ada@127.0.0.1:1/db cannot be used"),
        (["--storage", "journal:log", "--knobs"], "Leave --storage away"),
        (["--storage", "journal:log", "--batches", "1,2"], "Leave --storage away"),
    ],
    ids=["another database", "no server", "knobs", "batches"],
)
def test_a_storage_that_cannot_be_shared_is_told_without_its_password(run, tmp_path, options, words):
    """What is wrong with a storage is one sentence, and its password is nowhere, on the screen or in a file."""
    code, out, err = run("tune", "train.py", *options)
    assert code == (SetupError if "127.0.0.1" in options[1] else UsageError).exit_code
    assert words in err
    assert "s3cr3t" not in out + err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"s3cr3t" in path.read_bytes() for path in files)


def test_a_storage_that_cannot_be_used_leaves_no_folder(run, tmp_path):
    """Where a study cannot be shared there is none to list, or to remove, and none is told of."""
    code, _, err = run("tune", "train.py", "--study", "a b", f"--storage=journal:{tmp_path}")
    assert code == SetupError.exit_code
    assert err.startswith("autorecompute: The storage")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_of_another_study_is_refused_before_anything_is_begun(run, begin, tmp_path, is_shared):
    """Neither the script nor a study in the storage is begun where the folder's study is not the one there."""
    folder = begin("bert")
    if is_shared:
        share(folder, "token", "journal:/elsewhere")
    (tmp_path / "train.py").write_text("open('ran', 'w')")
    code, _, err = run("tune", "train.py", "--study", "bert", "--storage", "journal:log")
    assert code == UsageError.exit_code
    assert "not the one in the storage" in err
    assert not (tmp_path / "ran").exists()
    assert optuna.get_all_study_names(open_journal(tmp_path / "log")) == []


def test_what_a_worker_finds_is_told(run, tmp_path, make_detection, make_space):
    """Whether one begins a study or comes to it, and how far it is, stands on the screen."""
    assert "shared in journal:" in (new := run("tune", "train.py", "--study", "bert", "--storage", "journal:log")[2])
    assert "/log: new" in new
    url = parse_storage(f"journal:{tmp_path}/log")
    worker = SharedStudy(url, "bert", pytest.fail)
    problem, sizes = Problem.of(make_detection(), 2**30), Sizes.of(make_detection())
    tuned = Tuned(problem=problem, sizes=sizes, command=("python", "train.py"))
    worker.join(tuned, make_space(), is_limit_free=False)
    worker.leave()
    assert "/log: 0 trials so far" in run("tune", "train.py", "--study", "bert", "--storage", "journal:log")[2]


@pytest.mark.parametrize(
    ("value", "options", "words"),
    [
        ("journal:log", ["--knobs"], "Unset AUTORECOMPUTE_STORAGE"),
        ("mysql://host/db", [], "AUTORECOMPUTE_STORAGE knows"),
        ("", ["--launcher", "no-such-launcher"], "no-such-launcher"),
    ],
)
def test_what_is_wrong_with_the_variable_is_told_of_the_variable(run, monkeypatch, value, options, words):
    """Who gave no option is told of none; a variable that is empty asks for nothing."""
    monkeypatch.setenv(STORAGE_VARIABLE, value)
    err = run("tune", "train.py", *options)[2]
    assert words in err
    assert "--storage" not in err


def test_the_variable_of_the_storage_is_not_for_scripts(start, monkeypatch, tmp_path):
    """``AUTORECOMPUTE_STORAGE`` says where a study is shared, and is gone before a verb can start a process."""
    monkeypatch.setenv(STORAGE_VARIABLE, "postgresql://ada:s3cr3t@127.0.0.1:1/db")
    assert "postgresql://ada@127.0.0.1:1/db cannot be used" in start("tune", "train.py").communicate(timeout=60)[1]
    monkeypatch.chdir(tmp_path)
    main(["show"])
    assert STORAGE_VARIABLE not in os.environ
