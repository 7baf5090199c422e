"""A clock that nothing but trainings wind, so that what a command does never goes by how busy the machine is."""

import mmap
import os
import struct
from pathlib import Path

VARIABLE = "FAKE_CLOCK"


class Clock:
    """The seconds in a file that all processes of a command share."""

    def __init__(self, path):
        with Path(path).open("r+b") as file:
            self._seconds = mmap.mmap(file.fileno(), 0)

    def monotonic(self):
        return struct.unpack("d", self._seconds)[0]

    def advance(self, seconds):
        self._seconds[:] = struct.pack("d", self.monotonic() + seconds)


def wind(path):
    """Begins anew, at a time that is nobody's zero."""
    path.write_bytes(struct.pack("d", 1000.0))
    return str(path)


def clock_in_use():
    """``None`` where time passes as ever."""
    path = os.environ.get(VARIABLE)
    return Clock(path) if path else None
