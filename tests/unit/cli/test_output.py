import json
import os
import subprocess
import sys

import pytest

COMMANDS = pytest.mark.parametrize("arguments", [["--help"], ["show"], ["show", "--json"]], ids=" ".join)


def run(arguments, folder, redirection):
    command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "autorecompute", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def unread():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


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
        "from autorecompute.cli.output import guard_output; guard_output()\n"
        "from autorecompute.reports.live import LiveView\n"
        "with LiveView() as view:\n"
        "    for _ in range(100): view.note('a line' * 1000)\n"
        "print('the answer')\n"
    )
    ended = subprocess.run([sys.executable, "-c", talk], stdout=subprocess.PIPE, stderr=unread, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "the answer\n")
