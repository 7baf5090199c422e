"""Paths on the command line that are wrong, over all verbs: one sentence, a code of the contract, and no waiting."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.cli import main
from autorecompute.errors import SetupError, UsageError
from stand_ins import program

LONG = "n" * 300


@pytest.fixture
def place(tmp_path, begin):
    """The working folder: a script, a study, a pipe, a circle of links, a folder and a link to the pipe."""
    begin("bert")
    (tmp_path / "train.py").touch()
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "to-pipe").symlink_to("pipe.png")
    (tmp_path / "folder").mkdir()
    (tmp_path / "taken.lock").mkdir()
    return tmp_path


@pytest.fixture
def ended(place, capsys, monkeypatch):
    """How a command ends there: its code, its data and how many lines it says."""
    monkeypatch.chdir(place)

    def ended(*arguments):
        code = main(list(arguments))
        out, err = capsys.readouterr()
        return code, out, len(err.splitlines())

    return ended


@pytest.mark.parametrize("output", ["loop.png", LONG, "pipe.png", "folder", "train.py/x", "folder/none/x"])
@pytest.mark.parametrize("verb", [["report", "bert"], ["studies", "export", "bert"]], ids=" ".join)
def test_an_output_that_can_be_no_file(ended, verb, output):
    """It is told in a sentence, whatever is asked to be written."""
    assert ended(*verb, "--force", "-o", output) == (UsageError.exit_code, "", 1)


@pytest.mark.parametrize("script", [LONG, "loop.png", "pipe.png", "folder", "train.py/x", "new\nline"])
@pytest.mark.parametrize("verb", ["tune", "plans"])
def test_a_script_that_is_none(ended, verb, script):
    """There is no such script, and it is named on one line; nothing is begun."""
    assert ended(verb, script) == (UsageError.exit_code, "", 1)


@pytest.mark.parametrize("picture", [f"{LONG}.png", "loop.png", "pipe.png", "train.py/x.svg"])
def test_a_picture_that_can_be_no_file(ended, picture):
    """It is told before the script is started."""
    assert ended("plans", "train.py", "--picture", picture) == (UsageError.exit_code, "", 1)


@pytest.mark.parametrize("archive", [LONG, "loop.png", "pipe.png", "to-pipe", "folder", "train.py/x", "/dev/full"])
def test_an_archive_that_is_none(ended, archive):
    """A pipe is not waited for, behind a link neither."""
    assert ended("studies", "import", archive) == (UsageError.exit_code, "", 1)


@pytest.mark.parametrize(
    ("storage", "code"),
    [
        ("~nouser/x", UsageError.exit_code),
        ("pipe.png", SetupError.exit_code),
        ("to-pipe", SetupError.exit_code),
        ("/dev/null", SetupError.exit_code),
        ("/dev/zero", SetupError.exit_code),
        ("loop.png", SetupError.exit_code),
        ("folder", SetupError.exit_code),
        ("train.py/x", SetupError.exit_code),
        (LONG, SetupError.exit_code),
        ("taken", SetupError.exit_code),
    ],
)
def test_a_journal_that_is_none(ended, place, storage, code):
    """What cannot be shared is told in a sentence and not waited for; nothing is begun."""
    assert ended("tune", "train.py", "--study", "new", "--storage", f"journal:{storage}") == (code, "", 1)
    assert not (place / "studies" / "new").exists()


def test_a_working_folder_that_is_gone(tmp_path):
    """The sentence says so, whatever was asked for."""
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" -P -m autorecompute show'
    command = ["sh", "-c", script, "sh", str(gone), sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (SetupError.exit_code, "", 1)
    assert "working folder" in ended.stderr


def test_a_path_that_is_no_text_is_printed_as_the_bytes_it_is(tmp_path, begin):
    """What a script captures is the path that was written."""
    begin("bert")
    command = [sys.executable, program.__file__, "report", "bert", "-o", os.fsdecode(b"\xff.html")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\xff.html\n", b"")
    assert Path(os.fsdecode(bytes(tmp_path) + b"/\xff.html")).is_file()


def test_a_terminal_without_a_sign_shows_how_python_writes_it(tmp_path, begin):
    """A name that the terminal cannot show ends no command."""
    begin("größe")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "autorecompute", "show"]
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "gr\\xf6\\xdfe" in ended.stdout
