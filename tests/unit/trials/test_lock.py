"""One tuning at a time on a device, between real processes."""

import os
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from autorecompute.errors import SetupError
from autorecompute.training_job import Device
from autorecompute.trials.lock import hold_device, lock_file
from autorecompute.trials.private import private_folder
from autorecompute.waiting import OutOfTime, ending_at

HOLD = """
import sys, time
from autorecompute.training_job import Device
from autorecompute.trials.lock import hold_device

with hold_device(Device(kind=sys.argv[1], name="", uuid=sys.argv[2], total_bytes=1), "study /studies/bert", print):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def _own_locks(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


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
    """A device."""
    return Device(kind=kind, name="Some Device", uuid=uuid, total_bytes=1)


def test_a_device_that_is_held_is_waited_for_and_goes_with_its_holder(holder):
    """Who comes second is told who is measuring, and gets the device when that process is killed."""
    other, told = holder("cpu"), []

    def wait_and_end(text):
        told.append(text)
        other.kill()

    with hold_device(device(), "study /studies/gpt", wait_and_end):
        assert other.wait(10) != 0
    (text,) = told
    assert "/studies/bert" in text
    assert str(other.pid) in text


def test_a_device_is_waited_for_until_the_deadline(holder):
    """A device that others keep ends the wait when the time is over."""
    holder("cpu")
    told, began = [], time.monotonic()
    with ending_at(began + 0.2), pytest.raises(OutOfTime), hold_device(device(), "study", told.append):
        pytest.fail("two hold it")
    assert time.monotonic() - began >= 0.2
    assert len(told) == 1


def test_a_free_device_is_taken_without_a_word():
    """A lock that an ended tuning left behind holds nobody up."""
    for purpose in ("first", "second"):
        with hold_device(device(), purpose, pytest.fail):
            assert purpose in lock_file(device()).read_text()
            assert "first" not in lock_file(device()).read_text().replace(purpose, "")


@pytest.mark.parametrize("other", [("cuda", "GPU-2"), ("cpu", "")])
def test_another_device_is_free(holder, other):
    """Two cards, and a card and the processor, can be measured at once."""
    holder(*other)
    with hold_device(device("cuda", "GPU-1"), "study", pytest.fail):
        assert os.path.exists(lock_file(device("cuda", "GPU-1")))  # noqa: PTH110  (the lock is the file)


def test_a_part_of_a_card_is_a_device_too():
    """Older drivers have slashes in the UUID of a part of a card."""
    with hold_device(device("cuda", "MIG-GPU-1/2/0"), "study", pytest.fail):
        assert lock_file(device("cuda", "MIG-GPU-1/2/0")).is_file()


def test_nobody_else_can_hold_the_device():
    """No other user can open the lock, and whoever cannot open it cannot hold it."""
    with hold_device(device(), "study", pytest.fail):
        file = lock_file(device())
        assert [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent)] == [0o600, 0o700]


def test_a_lock_that_others_could_open_is_closed_to_them():
    """What an earlier copy or an unpacked archive left open is closed before it is held."""
    lock_file(device()).touch()
    lock_file(device()).chmod(0o666)
    with hold_device(device(), "study", pytest.fail):
        assert stat.S_IMODE(lock_file(device()).stat().st_mode) == 0o600


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path):
    """The file that the link leads to keeps what is in it."""
    (tmp_path / "precious").write_text("precious")
    lock_file(device()).symlink_to(tmp_path / "precious")
    with pytest.raises(SetupError, match="set TMPDIR"), hold_device(device(), "study", pytest.fail):
        pytest.fail("a link was held")
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_what_is_no_file_is_no_lock(make):
    """It is told in a sentence, and a pipe is not waited for."""
    make(lock_file(device()))
    with pytest.raises(SetupError, match="set TMPDIR"), hold_device(device(), "study", pytest.fail):
        pytest.fail("it was held")


def _link_elsewhere(folder):
    elsewhere = folder.with_name("elsewhere")
    elsewhere.mkdir(mode=0o700)
    folder.symlink_to(elsewhere)


@pytest.mark.parametrize(
    "spoil",
    [lambda folder: folder.mkdir() or folder.chmod(0o755), _link_elsewhere, os.mkfifo, lambda folder: folder.touch()],
    ids=["open to others", "a link", "a pipe", "a file"],
)
def test_a_folder_that_is_not_ours_alone_is_refused(tmp_path, spoil):
    """Another user may have made it first: nothing is written there, and the way out is told."""
    spoil(tmp_path / f"autorecompute-{os.geteuid()}")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(SetupError, match=r"cannot be used: .*set TMPDIR"), hold_device(device(), "study", pytest.fail):
        pytest.fail("it was held")
    assert set(tmp_path.rglob("*")) == before


def test_a_folder_of_another_user_is_refused(monkeypatch):
    """Who owns the folder can put anything there."""
    own = private_folder()
    stranger = os.geteuid() + 1
    own.rename(own.with_name(f"autorecompute-{stranger}"))
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    with pytest.raises(SetupError, match="belongs to another user"):
        private_folder()


def test_where_there_is_no_temporary_folder_that_is_said(monkeypatch):
    """A machine that lets nothing be written anywhere is not the tool's fault."""

    def find_none():
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", find_none)
    with pytest.raises(SetupError, match="set TMPDIR"):
        private_folder()
