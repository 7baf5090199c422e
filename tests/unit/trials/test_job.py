"""The user's training command."""

import sys
from pathlib import Path

import pytest

from autorecompute.errors import UsageError
from autorecompute.trials import Job


@pytest.fixture
def script(tmp_path):
    """A script."""
    file = tmp_path / "train.py"
    file.write_text("")
    return file


@pytest.mark.parametrize("name", ["no.py", ""])
def test_a_script_that_is_not_there_is_a_wrong_usage(tmp_path, name):
    """A missing file and a folder are no scripts; the sentence names what was given."""
    with pytest.raises(UsageError, match=f"no script '{tmp_path / name}'"):
        Job(script=tmp_path / name)


def test_a_module_is_started_as_python_starts_it():
    """Its name follows -m, for the worker and in the command that people read, with a launcher or without."""
    job = Job(script=Path("package.train"), is_module=True, arguments=("--epochs", "1"), launcher="torchrun")
    assert job.plain_command(None) == ["torchrun", "-m", "package.train", "--epochs", "1"]
    assert job.worker_command(None)[1:] == ["-m", "autorecompute.worker", "-m", "package.train", "--epochs", "1"]


@pytest.mark.parametrize("name", ["train.py", "a-b", "", "package..train"])
def test_what_is_no_name_of_a_module_is_a_wrong_usage(name):
    """The sentence shows the form of one."""
    with pytest.raises(UsageError, match=r"-m package\.train"):
        Job(script=Path(name), is_module=True)


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("train.ipynb", "{}", "notebook"),
        ("train", "#!/bin/bash\n", "shell script"),
        ("t.sh", "#!/usr/bin/env sh\n", "shell"),
    ],
)
def test_what_is_no_python_is_refused_by_what_it_is(tmp_path, name, text, kind):
    """A notebook and a shell script, whatever they are called."""
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=kind):
        Job(script=tmp_path / name)


def test_a_script_may_name_its_interpreter(tmp_path):
    """A line that names Python makes no shell script of it."""
    (tmp_path / "train").write_text("#!/usr/bin/env python3\n")
    assert Job(script=tmp_path / "train").plain_command(None) == ["python", str(tmp_path / "train")]


def test_the_batch_stands_where_the_arguments_want_it(script):
    """Every placeholder becomes the batch, within words too, and braces of other meaning stay."""
    job = Job(script=script, arguments=("--bs={batch}", '{"n": {batch}, "m": {}}', "{batches}", "plain"))
    assert job.takes_batch
    assert job.script_arguments(32) == ["--bs=32", '{"n": 32, "m": {}}', "{batches}", "plain"]


def test_a_batch_flag_comes_last(script):
    """A flag and the batch follow the script's own arguments."""
    job = Job(script=script, arguments=("--epochs", "1"), batch_flag="--bs")
    assert job.takes_batch
    assert job.script_arguments(8) == ["--epochs", "1", "--bs", "8"]


@pytest.mark.parametrize("job", [{"batch_flag": "--bs"}, {"arguments": ("{batch}",)}])
def test_a_script_that_wants_a_batch_must_be_given_one(script, job):
    """Without a target batch the sentence says which flag is missing."""
    with pytest.raises(UsageError, match="--target-batch"):
        Job(script=script, **job).script_arguments(None)


def test_a_script_without_a_batch_is_left_as_it_is(script):
    """Arguments without placeholder and flag do not change with the batch, which the environment then carries."""
    job = Job(script=script, arguments=("--epochs", "1"))
    assert not job.takes_batch
    assert job.script_arguments(None) == job.script_arguments(32) == ["--epochs", "1"]
    assert "32" in job.batch_environment(32).values()
    assert job.batch_environment(None) == {}


def test_a_worker_is_this_interpreter_with_the_script_inside(script):
    """Without a launcher the interpreter is the tuner's own."""
    command = Job(script=script, arguments=("--epochs", "1")).worker_command(None)
    assert command[0] == sys.executable
    assert command[-3:] == [str(script), "--epochs", "1"]


def test_a_launcher_stands_in_front(script):
    """A launcher's words are split as a shell splits them, in the worker's and in the readable command."""
    job = Job(script=script, launcher="torchrun --log-dir 'two words'")
    for command in (job.worker_command(None), job.plain_command(None)):
        assert command[:3] == ["torchrun", "--log-dir", "two words"]
        assert command[-1] == str(script)


def test_a_launcher_that_no_shell_reads_is_a_wrong_usage(script):
    """An open quotation in --launcher ends in a sentence."""
    with pytest.raises(UsageError):
        Job(script=script, launcher="torchrun 'open").worker_command(None)


def test_a_relative_script_stays_as_it_was_typed(script, monkeypatch):
    """The readable command shows the path the user gave."""
    monkeypatch.chdir(script.parent)
    assert Job(script=Path("train.py")).plain_command(None)[-1] == "train.py"


def test_what_is_typed_into_a_notebook_has_no_script_in_its_command():
    """So that nobody starts an interpreter for it."""
    assert Job(script=Path("Encoder"), is_typed=True).script_at == 0
