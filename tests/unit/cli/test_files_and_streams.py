import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.errors import SetupError, UsageError
from fake_backend import program

LONG = f"{'n' * 300}.png"
NO_FILES = [LONG, "loop.png", "pipe.png", "folder", "train.py/x.png"]
WRITING = ["emit bert", "report bert", "studies export bert"]
VERBS = [*(f"{verb} --force -o" for verb in WRITING), "plans train.py --picture", "studies import", "tune", "plans"]


@pytest.fixture
def place(tmp_path, begin, make_result):
    begin(result=make_result(trials=0))
    (tmp_path / "train.py").write_text("no database\n")
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    (tmp_path / "to-pipe").symlink_to("pipe.png")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        *((verb, path) for verb in VERBS for path in NO_FILES),
        ("emit bert --force -o", "/dev/null"),
        ("emit bert --force -o", "to-pipe"),
        ("studies import", "nowhere"),
        ("report bert --force -o", "folder/none/x"),
        ("tune", "new\nline"),
        ("studies import", "to-pipe"),
        ("studies import", "/dev/full"),
    ],
)
def test_what_can_be_no_such_file_is_told_on_one_line_before_anything_is_written(call, place, verb, path):
    before = set(place.iterdir())
    code, out, err = call(*verb.split(), path)
    assert (code, out, len(err.splitlines())) == (UsageError.exit_code, "", 1)
    assert "'" in err
    assert set(place.iterdir()) == before


@pytest.mark.parametrize("verb", WRITING)
def test_a_file_of_the_users_is_replaced_by_force_alone(call, place, verb):
    mine = place / "train.py"
    mine.write_text("mine")
    code, out, err = call(*verb.split(), "-o", "train.py")
    assert (code, out, mine.read_text()) == (UsageError.exit_code, "", "mine")
    assert "Add --force to replace it." in err
    assert call(*verb.split(), "-o", "train.py", "--force")[0] == 0
    assert "bert" in mine.read_text()


@pytest.mark.parametrize("storage", [*NO_FILES, "to-pipe", "/dev/zero", "train.py"])
def test_a_database_that_is_none_is_told_on_one_line(call, place, storage):
    code, out, err = call("tune", "train.py", "--study", "new", "--storage", f"sqlite:///{storage}")
    assert (out, len(err.splitlines())) == ("", 1)
    assert code in {UsageError.exit_code, SetupError.exit_code}
    assert not (place / "studies" / "new").exists()
    assert (place / "train.py").read_text() == "no database\n"


def test_a_working_folder_that_is_gone_is_told(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    script = 'cd "$1" && rmdir "$1" && exec "$2" -P -m autorecompute show'
    command = ["sh", "-c", script, "sh", str(gone), sys.executable]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, len(ended.stderr.splitlines())) == (SetupError.exit_code, "", 1)
    assert "working folder" in ended.stderr


def test_a_path_that_is_no_text_is_printed_as_the_bytes_it_is(tmp_path, begin):
    begin()
    command = [sys.executable, program.__file__, "report", "bert", "-o", os.fsdecode(b"\xff.html")]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"\xff.html\n", b"")
    assert Path(os.fsdecode(bytes(tmp_path) + b"/\xff.html")).is_file()


def test_a_terminal_without_a_sign_shows_how_python_writes_it(start, begin):
    begin("größe")
    process = start("show", PYTHONIOENCODING="ascii")
    out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert "gr\\xf6\\xdfe" in out


COMMANDS = pytest.mark.parametrize("arguments", [["--help"], ["show", "--json"]], ids=" ".join)


def run(arguments, folder, redirection):
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "autorecompute", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@COMMANDS
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_ends_in_a_sentence(tmp_path, arguments, redirection):
    ended = run(arguments, tmp_path, redirection)
    assert ended.returncode == 3
    assert ended.stderr.startswith("autorecompute: Standard output cannot be written: ")
    assert len(ended.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("command", "redirection", "code"),
    [
        ("show", ">/dev/full 2>&1", 3),
        ("show none", ">&- 2>&-", 2),
        ("show none", ">&-", 2),
        ("show none --json", "2>/dev/full", 2),
    ],
)
def test_the_code_is_the_same_where_nothing_can_be_said(tmp_path, command, redirection, code):
    ended = run(command.split(), tmp_path, redirection)
    assert ended.returncode == code
    if redirection == ">&-":
        assert ended.stderr.startswith("autorecompute: There is no study 'none'")
    if "--json" in command:
        assert json.loads(ended.stdout)["exit_code"] == code


@COMMANDS
def test_a_reader_that_left_ends_it_quietly(tmp_path, unread, arguments):
    command = [sys.executable, "-m", "autorecompute", *arguments]
    ended = subprocess.run(command, cwd=tmp_path, stdout=unread, stderr=subprocess.PIPE, check=False)
    assert (ended.returncode, ended.stderr) == (141, b"")


def test_a_tuning_whose_messages_nobody_reads_goes_on_to_its_answer(unread):
    talk = (
        "from autorecompute.cli import guard_output; guard_output()\n"
        "from autorecompute.reports.live import LiveView\n"
        "with LiveView() as view:\n"
        "    for _ in range(100): view.note('a line' * 1000)\n"
        "print('the answer')\n"
    )
    ended = subprocess.run([sys.executable, "-c", talk], stdout=subprocess.PIPE, stderr=unread, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the answer\n")
