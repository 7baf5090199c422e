"""One tuning at a time on a device, between real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from autorecompute.measurement import Device
from autorecompute.trials.lock import hold_device, lock_file

HOLD = """
import sys, time
from autorecompute.measurement import Device
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
def holder():
    """Another process that holds a device."""
    started = []

    def hold(kind, uuid=""):
        process = subprocess.Popen([sys.executable, "-c", HOLD, kind, uuid], stdout=subprocess.PIPE, text=True)
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
