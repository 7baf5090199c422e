"""Many changes find nothing, and what they are there to find would be found: faults are caused for real."""

import argparse
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

from autorecompute import cli
from fuzz import cases, commands, sandbox
from fuzz.commands import Command

OUTSIDE = Path("../outside/keep.txt")
CASES = 2000


def test_nothing_is_wrong_in_many_changes(pytestconfig):
    # A pytest that is not given this folder reads its conftest too late for the option.
    count = pytestconfig.getoption("--fuzz-cases", None) or CASES
    words = [sys.executable, "-m", "fuzz", "--cases", str(count)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_verb_is_tried():
    verbs = _verbs_of(cli.make_parser())
    known = {*verbs, *(f"studies {name}" for name in _verbs_of(verbs["studies"]))} - {"studies"}
    assert {Command(tuple(line.split())).verb for line in commands.VERBS.values()} - {""} == known


def _verbs_of(parser):
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def write_there():
    Path("link").symlink_to(OUTSIDE)
    Path("link").write_text("gone", encoding="utf-8")


def raise_error():
    raise RuntimeError("nobody thought of it")


class Planted:
    def __init__(self, *faults):
        self._faults = faults

    def change_of(self, number):
        return self._faults[number]

    def run(self, number, place):
        for file in (place / "outside" / "keep.txt", place / sandbox.WORK / "study.json"):
            file.parent.mkdir()
            file.write_text("kept", encoding="utf-8")
        return cases.meet(place, "", Command(("show", "bert")), main=lambda _: self._faults[number]())[1]


def find(place, *faults):
    found = dict(cases.run_cases(Planted(*faults), place, range(len(faults)), jobs=1))
    return [" ".join(map(str, found[number])) for number in range(len(faults))]


FAULTS = [
    (write_there, "did what no command may do: open"),
    (lambda: OUTSIDE.rename("mine.txt"), "did what no command may do: os.rename"),
    (lambda: subprocess.run(["true"], check=True), "did what no command may do: subprocess.Popen"),
    (lambda: pickle.loads(pickle.dumps(Path)), "did what no command may do: pickle.find_class"),  # noqa: S301
    (lambda: Path("study.json").write_text("", encoding="utf-8"), "changed study.json"),
    (lambda: Path("study.json").unlink(), "removed study.json"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), f"ended its process with -{signal.SIGKILL.value}"),
    (raise_error, "RuntimeError: nobody thought of it"),
    (lambda: sys.stderr.write("Traceback (most recent call last):\n") and 3, "printed a traceback"),
    (lambda: sys.stderr.write("a word") and 7, "exit code 7, which is not documented"),
    (lambda: 3, "not a word"),
    (lambda: sys.stdout.write("\x1b[2J") and 0, "standard output has control characters"),
    (lambda: sys.stderr.write("a\u202eb") and 3, "standard error has control characters"),
    (lambda: len(bytearray(2 * sandbox.MOST_BYTES)), "MemoryError"),
]


def test_each_fault_is_found_also_behind_one_that_ends_its_process(tmp_path):
    *said, nothing = find(tmp_path, *(fault for fault, _ in FAULTS), lambda: 0)
    assert [words for (_, words), found in zip(FAULTS, said, strict=True) if words not in found] == []
    assert nothing == ""
