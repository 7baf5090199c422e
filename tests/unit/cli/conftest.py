"""Commands as processes, and studies for them."""

import subprocess
import sys

import pytest

from autorecompute.studies import Problem, StudyFolder
from stand_ins import program


@pytest.fixture
def start(tmp_path):
    """Starts ``autorecompute`` with these arguments in an empty folder that has a script."""
    (tmp_path / "train.py").write_text("raise SystemExit('a unit test does not train')\n")

    def start(*arguments):
        return subprocess.Popen(
            [sys.executable, program.__file__, *arguments],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


@pytest.fixture
def run(start):
    """Runs ``autorecompute`` to its end; gives its exit code, its data and its talk."""

    def run(*arguments):
        process = start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    return run


@pytest.fixture
def begin(tmp_path, make_detection):
    """Begins a study in the folder where the command runs."""

    def begin(name):
        folder = StudyFolder(name, tmp_path / "studies")
        folder.prepare()
        folder.begin(Problem.of(make_detection(), 2**30), ["python", "train.py"])
        return folder

    return begin
