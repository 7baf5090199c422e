"""What the fuzzer is there to find is found, caused for real in a process as its cases have."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fuzz import checks, sandbox
from fuzz.commands import Command
from fuzz.runner import run_cases
from fuzz.sandbox import Sandbox

OUTSIDE = Path("../outside/keep.txt")
COMMAND = Command(("show", "bert"))


def write_there(_):
    """Opens a file of somebody else's to write."""
    OUTSIDE.write_text("gone", encoding="utf-8")
    return 0


def write_through_a_link(_):
    """The same by a name of its own."""
    Path("link").symlink_to(OUTSIDE)
    Path("link").write_text("gone", encoding="utf-8")
    return 0


def write_and_say_nothing(_):
    """Changes what it only reads."""
    Path("study.json").write_text("{}", encoding="utf-8")
    return 0


def rename_away(_):
    """Takes a file away."""
    OUTSIDE.rename("mine.txt")
    return 0


def start(_):
    """Starts a program."""
    subprocess.run(["true"], check=True)
    return 0


def unpickle(_):
    """Loads what can run anything."""
    pickle.loads(pickle.dumps(Path))  # noqa: S301  (that is the fault)
    return 0


def raise_error(_):
    """Meets what nobody thought of."""
    raise RuntimeError("nobody thought of it")


def print_traceback(_):
    """Handles it in the user's sight."""
    sys.stderr.write("Traceback (most recent call last):\n")
    return 3


def hang(_):
    """Computes for ever."""
    while True:
        pass


def wait(_):
    """Waits for ever."""
    time.sleep(3600)


def take_memory(_):
    """Takes more than there may be."""
    return len(bytearray(sandbox.MOST_BYTES + 1))


def die(_):
    """Is ended by a signal."""
    os.kill(os.getpid(), signal.SIGKILL)


class Planted:
    """A plan whose cases are commands with a fault.

    Args:
        faults: What each case runs instead of a command.
    """

    def __init__(self, *faults):
        self._faults = faults

    def change_of(self, number):
        """The fault."""
        return self._faults[number].__name__

    def run(self, number, place):
        """What is wrong with it."""
        (place / "outside").mkdir()
        box = Sandbox(place)
        for file in (place / "outside" / "keep.txt", box.work / "study.json"):
            file.write_text("kept", encoding="utf-8")
        before = {name: checks.snapshot(place / name) for name in ("work", "outside")}
        ended = box.run(list(COMMAND.arguments), main=self._faults[number])
        after = {name: checks.snapshot(place / name) for name in ("work", "outside")}
        return list(checks.complaints(COMMAND, ended, before, after))


@pytest.fixture
def find(tmp_path):
    """Runs a fault as a case; what is said of it."""

    def find(fault):
        ((_, findings),) = run_cases(Planted(fault), tmp_path, [0], jobs=1)
        return " ".join(map(str, findings))

    return find


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (write_there, "did what no command may do: open"),
        (write_through_a_link, "did what no command may do: open"),
        (rename_away, "did what no command may do: os.rename"),
        (start, "did what no command may do: subprocess.Popen"),
        (unpickle, "did what no command may do: pickle.find_class"),
        (write_and_say_nothing, "changed study.json"),
        (raise_error, "RuntimeError: nobody thought of it"),
        (print_traceback, "printed a traceback"),
        (take_memory, "MemoryError"),
        (die, f"ended its process with -{signal.SIGKILL.value}"),
    ],
)
def test_a_fault_is_found(find, fault, words):
    """Each of them is said of the case that has it."""
    assert words in find(fault)


@pytest.mark.parametrize(("limit", "fault"), [("MOST_SECONDS", hang), ("LONGEST_WAIT", wait)])
def test_a_command_that_does_not_end_is_ended(find, monkeypatch, limit, fault):
    """Whether it computes or waits, its process goes, and its stacks are kept."""
    monkeypatch.setattr(sandbox, limit, 1)
    assert fault.__name__ in find(fault)


@pytest.mark.parametrize(
    ("code", "out", "err", "words"),
    [
        (7, "", "a word", "exit code 7, which is not documented"),
        (3, "", "", "not a word"),
        (0, "\x1b[2J", "", "standard output has control characters"),
        (3, "", "a\u202eb", "standard error has control characters"),
    ],
)
def test_what_a_command_says_is_checked(find, code, out, err, words):
    """Its exit code and its streams."""

    def say(_):
        sys.stdout.write(out)
        sys.stderr.write(err)
        return code

    assert words in find(say)


def test_a_command_without_fault_is_none(find):
    """Nothing is said of it."""
    assert find(lambda _: 0) == ""


def test_the_case_after_one_that_ends_its_process_is_run(tmp_path):
    """In another process, and each case is told of once."""
    ended = dict(run_cases(Planted(raise_error, die, raise_error), tmp_path, [0, 1, 2], jobs=1))
    assert [bool(ended[number]) for number in range(3)] == [True, True, True]
    assert "RuntimeError" in str(ended[2])


@pytest.mark.parametrize(
    "text",
    [
        "export LD_PRELOAD=./evil.so\n",
        "# a comment\ntouch pwned\n",
        "export X=1; > pwned\n",
        "export ORTMODULE_MEMORY_OPT_CONFIG=$(echo pwned)\n",
        "unset ORTMODULE_MEMORY_OPT_LEVEL\nexit 3\n",
    ],
)
def test_what_a_shell_would_run_is_found(text):
    """Text that does anything but set what a config sets is no answer of ``emit``."""
    assert list(checks.sourced(text))


def test_what_a_config_sets_is_let_through():
    """Comments, variables that are taken away, and those of a config."""
    assert not list(
        checks.sourced("# study: $(touch x)\nunset AUTORECOMPUTE_ORT_PROBE\nexport ORTMODULE_MEMORY_OPT_LEVEL=1\n")
    )
