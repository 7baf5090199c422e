import itertools
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from autorecompute import waiting
from autorecompute.backends import registry
from autorecompute.errors import SetupError
from autorecompute.training_job import Device
from autorecompute.trials.private import (
    cache_variables,
    compiled_code_of,
    forget_compiled_code,
    hold_device,
    lock_file,
    private_folder,
    variables_of_known_code,
)
from autorecompute.trials.process import OWNER, socket_folder
from autorecompute.waiting import ending_at

pytestmark = pytest.mark.usefixtures("own_temporary_directory")


def _link_elsewhere(folder):
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "spoil",
    [lambda folder: folder.mkdir() or folder.chmod(0o777), _link_elsewhere, os.mkfifo, lambda folder: folder.touch()],
    ids=["open to others", "a link", "a pipe", "a file"],
)
@pytest.mark.parametrize(
    "use",
    [
        lambda: hold_device(Device(kind="cpu", name="It", total_bytes=1), "study", pytest.fail).__enter__(),
        lambda: socket_folder().__enter__(),
        lambda: cache_variables(Path("studies/bert"), {}),
    ],
    ids=["locks", "sockets", "compiled code"],
)
def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path, spoil, use):
    """Another user may have made it first."""
    spoil(tmp_path / f"autorecompute-{os.geteuid()}")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(SetupError, match=r"cannot be used: .*set TMPDIR"):
        use()
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_is_not_used(monkeypatch):
    own = private_folder()
    stranger = os.geteuid() + 1
    own.rename(own.with_name(f"autorecompute-{stranger}"))
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(SetupError, match="belongs to another user"):
        private_folder()


def test_where_there_is_no_temporary_folder_that_is_said(monkeypatch):
    monkeypatch.setattr(
        tempfile, "gettempdir", mock.Mock(side_effect=FileNotFoundError("No usable temporary directory"))
    )
    with pytest.raises(SetupError, match="set TMPDIR"):
        private_folder()


def test_compilers_are_told_a_folder_of_the_users_alone_which_goes_with_its_study(tmp_path):
    """A model that is not compiled may have parts of its own that are, with caches of their own."""
    study = tmp_path / "studies" / "bert"
    study.mkdir(parents=True)
    folder = compiled_code_of(study)
    assert folder == compiled_code_of(study)
    assert folder != compiled_code_of(study.parent / "gpt2")
    assert not folder.is_relative_to(study)
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    variables = cache_variables(study, {})
    assert variables
    assert variables == dict.fromkeys(registry.gather("CACHE_VARIABLES"), str(compiled_code_of(study)))
    name, *others = variables
    assert cache_variables(study, {name: "/mine"}).keys() == {*others}
    assert variables_of_known_code(study, {}) == {}
    compiled_code_of(study).mkdir()
    assert variables_of_known_code(study, {}) == cache_variables(study, {})
    other = compiled_code_of(study.parent / "gpt2")
    for folder in (compiled_code_of(study), other):
        (folder / "ab").mkdir(parents=True)
        (folder / "ab" / "kernel.cpp").write_text("")
    forget_compiled_code(study)
    forget_compiled_code(study)
    assert not compiled_code_of(study).exists()
    assert (other / "ab" / "kernel.cpp").exists()


HOLD = """
import sys, time
from autorecompute.training_job import Device
from autorecompute.trials.private import hold_device

with hold_device(Device(kind=sys.argv[1], name="", uuid=sys.argv[2], total_bytes=1), "study /studies/bert", print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path_factory):
    """Another process, in a working folder of its own, that holds a device."""
    started = []

    def hold(kind, uuid=""):
        command, place = [sys.executable, "-c", HOLD, kind, uuid], tmp_path_factory.mktemp("elsewhere")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=place)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield hold
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def device(kind="cpu", uuid=""):
    return Device(kind=kind, name="Some Device", uuid=uuid, total_bytes=1)


def test_a_device_that_is_held_is_waited_for_and_goes_with_its_holder(holder):
    other, told = holder("cpu"), []

    def wait_and_end(text):
        told.append(text)
        other.kill()

    with hold_device(device(), "study /studies/gpt", wait_and_end):
        assert other.wait() != 0
    (text,) = told
    assert "/studies/bert" in text
    assert str(other.pid) in text


def test_a_device_is_waited_for_beyond_the_deadline_which_is_later_by_the_wait(holder, monkeypatch):
    """The time is the test's own, and passes where somebody waits."""
    held, told, now = holder("cpu"), [], itertools.count()

    def sleep(_seconds):
        if next(now) > 100:
            held.kill()
            held.wait()

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: next(now) / 10, sleep=sleep))
    with ending_at(2.0):
        with hold_device(device(), "study", told.append):
            assert next(now) > 100
            assert 0 < waiting.left_seconds() < 2.0
        waiting.raise_if_over()
    assert len(told) == 1


def test_a_free_device_is_taken_without_a_word_and_a_part_of_a_card_is_one_too():
    """Older drivers have slashes in the UUID of a part of a card."""
    for purpose in ("first", "second"):
        with hold_device(device(), purpose, pytest.fail):
            assert purpose in lock_file(device()).read_text()
            assert "first" not in lock_file(device()).read_text().replace(purpose, "")
    with hold_device(device("cuda", "MIG-GPU-1/2/0"), "study", pytest.fail):
        assert lock_file(device("cuda", "MIG-GPU-1/2/0")).is_file()


@pytest.mark.parametrize("other", [("cuda", "GPU-2"), ("cpu", "")])
def test_another_device_is_free(holder, other):
    holder(*other)
    with hold_device(device("cuda", "GPU-1"), "study", pytest.fail):
        assert os.path.exists(lock_file(device("cuda", "GPU-1")))  # noqa: PTH110  (the lock is the file)


@pytest.mark.parametrize("is_left_open", [False, True])
def test_nobody_else_can_hold_the_device(is_left_open):
    """An earlier copy or an unpacked archive may have left the lock open to others."""
    file = lock_file(device())
    if is_left_open:
        file.touch()
        file.chmod(0o666)
    with hold_device(device(), "study", pytest.fail):
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


@pytest.mark.parametrize(
    "make", [os.mkfifo, os.mkdir, lambda lock: lock.symlink_to("precious")], ids=["a pipe", "a folder", "a link"]
)
def test_what_is_no_file_is_no_lock(make):
    precious = lock_file(device()).with_name("precious")
    precious.write_text("precious")
    make(lock_file(device()))
    with pytest.raises(SetupError, match="set TMPDIR"), hold_device(device(), "study", pytest.fail):
        pytest.fail("it was held")
    assert precious.read_text() == "precious"


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


@pytest.mark.usefixtures("sockets")
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
