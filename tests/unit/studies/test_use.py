"""Who uses a study, and that no two tunings do."""

from __future__ import annotations

import subprocess
import sys

import pytest

from autorecompute.errors import UsageError
from autorecompute.studies import StudyFolder
from autorecompute.studies.use import using

HOLD = """
import sys
from pathlib import Path
from autorecompute.studies import StudyFolder
from autorecompute.studies.use import using

with using(StudyFolder("bert", Path(sys.argv[1]))):
    print("holding", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path):
    """A study."""
    folder = StudyFolder("bert", tmp_path)
    folder.prepare()
    return folder


@pytest.fixture
def other(folder):
    """A process that tunes the study."""
    command = [sys.executable, "-c", HOLD, str(folder.path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


@pytest.mark.usefixtures("other")
def test_a_study_that_is_tuned_is_not_tuned_by_another_process(folder):
    """Both would number their trials alike."""
    with pytest.raises(UsageError, match=r"is using study 'bert'. Wait for it"), using(folder):
        pytest.fail("both tune")


def test_a_process_that_is_killed_lets_go_of_its_study(folder, other):
    """What a dead tuning held is free at once."""
    other.kill()
    other.wait()
    with using(folder):
        assert folder.path.is_dir()


def test_one_after_the_other_is_fine(folder):
    """The lock ends with the context."""
    for _ in range(2):
        with using(folder):
            pass
