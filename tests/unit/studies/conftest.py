"""A disk that is full, or cannot be written, for real."""

from __future__ import annotations

import contextlib
import resource
import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own that holds 1 MiB, with the means to fill it and to forbid writing."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"a disk of its own needs mount, which says: {mounted.stderr.strip()}")
    yield SmallDisk(folder)
    # Optuna's pool keeps its files open: the disk goes when they do.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def no_file_longer_than():
    """Makes every write beyond a length of a file fail, for real."""

    @contextlib.contextmanager
    def no_file_longer_than(number_of_bytes):
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (number_of_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    return no_file_longer_than


class SmallDisk:
    """A disk that a test may fill."""

    def __init__(self, folder):
        self.folder = folder

    def fill(self):
        """Writes until nothing more can be written."""
        with (self.folder / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1024))

    def free(self):
        """Gives the space back."""
        (self.folder / "filler").unlink()

    def forbid_writing(self):
        """Makes the whole disk read-only."""
        subprocess.run(["mount", "-o", "remount,ro", str(self.folder)], check=True)
