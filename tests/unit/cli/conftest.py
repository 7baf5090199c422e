import dataclasses
import os
import subprocess
import sys

import pytest

from autorecompute.studies import Problem, Sizes, StudyFolder
from stand_ins import program


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

    def begin(name="bert", result=None, **found):
        folder, detection = StudyFolder(name, tmp_path / "studies"), make_detection(**found)
        command = ["python", "train.py"] if result is None else result.command
        folder.prepare()
        folder.begin(Problem.of(detection, 2**30), command, Sizes.of(detection))
        if result is not None:
            folder.keep_confirmed([result.best] if result.best else [])
            folder.finish(dataclasses.replace(result, study=name))
        return folder

    return begin
