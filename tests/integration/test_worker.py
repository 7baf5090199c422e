"""What a script notices of being tuned, and what is counted of its steps."""

import contextlib
import json
import os
import pty
import statistics
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "scripts"


def test_a_script_runs_as_if_python_had_started_it(workplace):
    """Name, file, arguments, module path and working directory are those of a plain run; no worker variable shows."""
    plain = json.loads(workplace.finish(workplace.start(str(SCRIPTS / "identity.py"), "--name", "a b")).stdout)
    workplace.tune("identity.py", arguments=("--name", "a b"))
    (log,) = workplace.study().logs
    assert json.loads(log.splitlines()[-1]) == plain


def test_a_script_named_by_a_relative_path_sees_its_file_as_ever(workplace):
    """A script in the working directory sees the same path of its own under the tool as under Python."""
    (workplace.path / "where.py").write_text("import sys; print('at', __file__, *sys.argv)")
    plain = workplace.finish(workplace.start("where.py"))
    workplace.finish(workplace.start("-m", "autorecompute", "tune", "where.py"))
    (log,) = workplace.study().logs
    assert log.splitlines()[-1] == plain.stdout.strip()


SETS = """
import os, sys

print("torch" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "1"

import torch

print(torch.get_num_threads())
"""


@pytest.mark.parametrize("verb", ["tune", "train"])
def test_variables_that_a_script_sets_before_it_imports_torch_are_read(workplace, verb):
    """The threads of a trial are those of a plain run, though the machine has more."""
    (workplace.path / "sets.py").write_text(SETS)
    free = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    plain = workplace.finish(workplace.start("sets.py", **free))
    followed = workplace.finish(workplace.start("-m", "autorecompute", verb, "sets.py", **free))
    told = followed.stdout if verb == "train" else workplace.study().logs[0]
    assert told == plain.stdout


LACKS = """
import sys

sys.modules["torch"] = None
import torch
"""


def test_an_interpreter_without_torch_is_told_in_a_sentence(workplace):
    """It is the installation that lacks something, and not the script."""
    (workplace.path / "lacks.py").write_text(LACKS)
    refused = workplace.finish(workplace.start("-m", "autorecompute", "tune", "lacks.py"))
    assert refused.code == 3
    assert "needs the package torch, and " in refused.complaint


ASKS = """
try:
    open("/dev/tty", "r+b", buffering=0).read(1)
except OSError as error:
    print("asked in vain:", error.strerror)
"""


def test_a_script_has_no_terminal_to_ask_at(workplace):
    """One that asks for a password there goes on at once, though the tuner has a terminal, and is not stopped."""
    (workplace.path / "asks.py").write_text(ASKS)
    child, terminal = pty.fork()
    if not child:
        os.chdir(workplace.path)
        os.execv(sys.executable, [sys.executable, "-m", "autorecompute", "tune", "asks.py"])  # noqa: S606
    with contextlib.suppress(OSError):  # at the end of what is shown
        while os.read(terminal, 4096):
            pass
    os.waitpid(child, 0)
    os.close(terminal)
    (log,) = workplace.study().logs
    assert log == "asked in vain: No such device or address\n"


def test_all_forwards_of_a_step_count(workplace):
    """With gradient accumulation a step has the samples of all its training forwards, and of no evaluation."""
    tuned = workplace.tune("accumulating.py", "--target-batch", "6", "--json")
    assert tuned.code == 0, tuned.stderr
    (trial,) = workplace.study().trials
    measurement = trial["measurement"]
    assert (measurement["batch"], measurement["samples"]) == (6, 18)
    per_second = 18 / statistics.median(measurement["step_seconds"])
    assert tuned.answer["baseline"]["samples_per_second"] == pytest.approx(per_second)
