"""Standard output that cannot be written: one sentence and the contract's code, never a traceback."""

from __future__ import annotations

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
