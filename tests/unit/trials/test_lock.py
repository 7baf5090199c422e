import os
import stat
import subprocess
import sys
import time

import pytest

from autorecompute.errors import SetupError
from autorecompute.training_job import Device
from autorecompute.trials.private import hold_device, lock_file
from autorecompute.waiting import OutOfTime, ending_at

HOLD = """
import sys, time
from autorecompute.training_job import Device
from autorecompute.trials.private import hold_device

with hold_device(Device(kind=sys.argv[1], name="", uuid=sys.argv[2], total_bytes=1), "study /studies/bert", print):
    print("held", flush=True)
    time.sleep(600)
"""


pytestmark = pytest.mark.usefixtures("own_temporary_directory")


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


def test_a_device_is_waited_for_until_the_deadline(holder):
    holder("cpu")
    told = []
    with ending_at(time.monotonic() + 0.2), pytest.raises(OutOfTime), hold_device(device(), "study", told.append):
        pytest.fail("two hold it")
    assert len(told) == 1


def test_a_free_device_is_taken_without_a_word():
    for purpose in ("first", "second"):
        with hold_device(device(), purpose, pytest.fail):
            assert purpose in lock_file(device()).read_text()
            assert "first" not in lock_file(device()).read_text().replace(purpose, "")


@pytest.mark.parametrize("other", [("cuda", "GPU-2"), ("cpu", "")])
def test_another_device_is_free(holder, other):
    holder(*other)
    with hold_device(device("cuda", "GPU-1"), "study", pytest.fail):
        assert os.path.exists(lock_file(device("cuda", "GPU-1")))  # noqa: PTH110  (the lock is the file)


def test_a_part_of_a_card_is_a_device_too():
    """Older drivers have slashes in the UUID of a part of a card."""
    with hold_device(device("cuda", "MIG-GPU-1/2/0"), "study", pytest.fail):
        assert lock_file(device("cuda", "MIG-GPU-1/2/0")).is_file()


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
