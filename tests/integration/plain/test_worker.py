"""What a script notices of being tuned, before it imports torch."""

import contextlib
import os
import pty
import sys

import pytest

pytestmark = pytest.mark.usefixtures("cold_python")  # how a process starts is what these tests are about


@pytest.fixture
def tune(workplace):
    """Tunes a script with this text, and gives what it printed."""

    def tune(text, verb="tune", *arguments, **variables):
        (workplace.path / "script.py").write_text(text)
        command = ("-m", "autorecompute", verb, "script.py", "--", *arguments)
        followed = workplace.finish(workplace.start(*command, **variables))
        return followed.stdout if verb == "train" else workplace.study().logs[0]

    return tune


IDENTITY = """
import os, sys

print(__name__, __file__, sys.argv, sys.path[0], os.getcwd())
print(sys.modules["__main__"].__dict__ is globals(), [name for name in os.environ if name.startswith("AUTORECOMPUTE_")])
"""


def test_a_script_runs_as_if_python_had_started_it(workplace, tune):
    """Name, file, arguments, module path and working directory are those of a plain run; no worker variable shows."""
    told = tune(IDENTITY, "tune", "--name", "a b")
    assert told == workplace.finish(workplace.start("script.py", "--name", "a b")).stdout


SETS = """
import os, sys

print("torch" in sys.modules)
os.environ["OMP_NUM_THREADS"] = "1"

import torch

print(torch.get_num_threads())
"""


@pytest.mark.parametrize("verb", ["tune", "train"])
def test_variables_that_a_script_sets_before_it_imports_torch_are_read(workplace, tune, verb):
    """The threads of a trial are those of a plain run, though the machine has more."""
    free = {"OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    told = tune(SETS, verb, **free)
    assert told == workplace.finish(workplace.start("script.py", **free)).stdout


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


TRACKS = """
import os
from pathlib import Path

if os.environ.get("WANDB_MODE") != "disabled":
    Path("wandb").mkdir()
Path(os.environ.get("MLFLOW_TRACKING_URI", "mlruns").removeprefix("file://")).mkdir(exist_ok=True)
Path("checkpoint.pt").touch()
"""


def test_a_script_that_starts_runs_in_trackers_starts_none_when_it_is_tuned(workplace, tune):
    """Leave what else it writes where it put it."""
    tune(TRACKS)
    assert {path.name for path in workplace.path.iterdir()} == {"script.py", "studies", "checkpoint.pt"}
