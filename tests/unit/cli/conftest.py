import os
import subprocess
import sys

import pytest

from fake_backend import program
from stand_ins.studies import COMMAND, keep_study


@pytest.fixture
def start(tmp_path):
    def start(*arguments, stderr=subprocess.PIPE, **variables):
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        return subprocess.Popen(
            [sys.executable, program.__file__, *arguments],
            cwd=tmp_path,
            env={**inherited, **variables},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    return start


@pytest.fixture
def begin(tmp_path, make_detection):
    """Begins a study in the folder where commands run, and ends it where there is a result."""

    def begin(name="bert", result=None, trials=(), **found):
        kept = {"command": COMMAND if result is None else result.command, "trials": trials, "result": result}
        return keep_study(tmp_path / "studies", make_detection(**found), name=name, **kept)

    return begin


@pytest.fixture
def unread():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)
