import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.trials.process import OWNER, socket_folder

OWN = """
import subprocess, sys, time
from autorecompute.trials.process import socket_folder

with socket_folder() as folder:
    (folder / "mlruns").mkdir()
    (folder / "mlruns" / "run").touch()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdout=subprocess.DEVNULL)
    print(folder, child.pid, flush=True)
    time.sleep(600)
"""


pytestmark = pytest.mark.usefixtures("sockets")


@pytest.fixture
def own():
    """Starts a process that owns a folder, and has a child that outlives it."""
    started, children = [], []

    def own():
        process = subprocess.Popen([sys.executable, "-c", OWN], stdout=subprocess.PIPE, text=True)
        started.append(process)
        path, child = process.stdout.readline().split()
        children.append(int(child))
        return process, Path(path)

    yield own
    for process in started:
        process.kill()
        process.communicate()
    for child in children:
        os.kill(child, 9)


def test_the_folder_of_a_killed_owner_is_removed_and_that_of_a_living_one_stays(own):
    (killed, left), (living, kept) = own(), own()
    killed.kill()
    killed.wait()
    with socket_folder():
        assert living.poll() is None
        assert not left.exists()
        assert (kept / "mlruns" / "run").exists()


@pytest.mark.parametrize("name", ["worker-x", "plans-x", "elsewhere"])
def test_what_has_no_owner_is_left_alone(sockets, name):
    stranger = sockets / name
    stranger.mkdir()
    if not name.startswith("worker-"):
        (stranger / OWNER).touch()
    os.utime(stranger, (0, 0))
    with socket_folder():
        pass
    assert stranger.exists()


def test_a_link_is_not_followed(tmp_path, sockets):
    elsewhere, own = tmp_path / "precious", sockets
    elsewhere.mkdir()
    (elsewhere / OWNER).touch()
    (own / "worker-link").symlink_to(elsewhere)
    (own / "worker-inner").mkdir()
    (own / "worker-inner" / OWNER).symlink_to(elsewhere / OWNER)
    with socket_folder():
        pass
    assert (elsewhere / OWNER).exists()
    assert (own / "worker-inner").exists()
