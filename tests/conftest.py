"""What all tests share."""

import os
import signal
import tempfile

import pytest

# Several test processes run at once, and threads that wait for each other's processor take many times as long as one.
# Libraries read this when they are first imported, which nothing has been yet.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def pytest_configure():
    """Lets the processes that tests start be interrupted: a job in a shell's background inherits that they are not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def temporary():
    """A place for temporary files that nobody else uses; its path is short, as those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="tests-") as folder:
        yield folder


@pytest.fixture
def own_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
