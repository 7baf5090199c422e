import fcntl
import os
import stat
import subprocess
import sys

import pytest

from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import StudyFolder
from autorecompute.studies.use import LOCK, find_user, using

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
    folder = StudyFolder("bert", tmp_path)
    folder.prepare()
    return folder


@pytest.fixture
def other(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def test_a_study_that_is_tuned_is_not_tuned_by_another_process(folder, other):
    assert find_user(folder) == other.pid
    with pytest.raises(UsageError, match=r"is using study 'bert'. Wait for it"), using(folder):
        pytest.fail("both tune")


def test_a_process_that_ends_or_is_killed_lets_go_of_its_study(folder, other):
    other.kill()
    other.wait()
    for _ in range(2):
        with using(folder):
            assert folder.path.is_dir()


def test_other_users_cannot_hold_a_study(folder):
    reading = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(reading, fcntl.LOCK_EX)
    with using(folder):
        assert stat.S_IMODE((folder.path / LOCK).stat().st_mode) == 0o600
    os.close(reading)


def test_a_link_in_place_of_the_lock_is_not_followed(folder, tmp_path):
    (folder.path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="work in another folder"), using(folder):
        pytest.fail("a link was held")
    assert not (tmp_path / "elsewhere").exists()
