"""Standard output that cannot be written: one sentence and the contract's code, never a traceback."""

import json
import os
import subprocess
import sys

import pytest

COMMANDS = [["--help"], ["show"], ["show", "--json"]]


def run(arguments, folder, redirection):
    """Runs a command by a shell, with this redirection."""
    script = f'exec "$@" {redirection}'
    command = ["sh", "-c", script, "sh", sys.executable, "-m", "autorecompute", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("redirection", [">/dev/full", ">&-"])
def test_output_that_cannot_be_written_ends_in_a_sentence(tmp_path, arguments, redirection):
    """A full disk and a closed stream are the machine's fault, and told in a sentence."""
    ended = run(arguments, tmp_path, redirection)

    assert ended.returncode == 3
    assert ended.stderr.startswith("autorecompute: Standard output cannot be written: ")
    assert len(ended.stderr.splitlines()) == 1


def test_full_disk_has_its_code_where_nothing_can_be_said(tmp_path):
    """Where messages go to the same full disk the code is the same."""
    assert run(["show"], tmp_path, ">/dev/full 2>&1").returncode == 3


def test_command_without_output_needs_none(tmp_path):
    """A usage error is told as ever where standard output is closed, and its code stands where all is."""
    ended = run(["show", "none"], tmp_path, ">&-")

    assert ended.returncode == 2
    assert ended.stderr.startswith("autorecompute: There is no study 'none'")
    assert run(["show", "none"], tmp_path, ">&- 2>&-").returncode == 2


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_reader_that_left_ends_it_quietly(tmp_path, arguments):
    """Whoever read has seen enough: no word, and the code that shells have for SIGPIPE."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "autorecompute", *arguments]
        ended = subprocess.run(command, cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE, check=False)
    finally:
        os.close(writer)

    assert (ended.returncode, ended.stderr) == (141, b"")


def without_reader(command, folder, environment=None):
    """Runs a command whose messages go to a pipe that nobody reads any more; gives it, ended, with its output."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return subprocess.run(
            command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=writer, text=True, check=False
        )
    finally:
        os.close(writer)


def test_a_tuning_that_nobody_follows_goes_on_to_its_answer(tmp_path):
    """The live view's lines are dropped where their reader has gone, and what is printed then arrives."""
    talk = (
        "from autorecompute.cli.output import guard_output; guard_output()\n"
        "from autorecompute.reports.live import LiveView\n"
        "with LiveView() as view:\n"
        "    for _ in range(100): view.note('a line' * 1000)\n"
        "print('the answer')\n"
    )
    ended = without_reader([sys.executable, "-c", talk], tmp_path)

    assert (ended.returncode, ended.stdout) == (0, "the answer\n")


def test_an_error_that_nobody_reads_has_its_code_and_its_json(tmp_path):
    """A program that reads standard output alone gets what it asked for."""
    ended = without_reader([sys.executable, "-m", "autorecompute", "show", "none", "--json"], tmp_path)

    assert ended.returncode == 2
    assert json.loads(ended.stdout)["exit_code"] == 2


def test_messages_on_a_full_disk_end_nothing(tmp_path):
    """Neither do they where there is no room for them."""
    ended = run(["show", "none", "--json"], tmp_path, "2>/dev/full")

    assert (ended.returncode, json.loads(ended.stdout)["exit_code"]) == (2, 2)
