"""One clock for all processes of a tuning, and what they count, in a file that each has mapped."""

import enum
import mmap
import struct
import time
from pathlib import Path

BEGIN = 1000.0
"""A time that is nobody's zero."""

THINKING = 0.5
"""Seconds of the virtual host for one of this machine's processor."""

LOOK = 1e-7
"""Seconds that pass while a process looks at the clock: none waits for ever."""


class Field(enum.IntEnum):
    """Content of the file, as 64-bit floats."""

    NOW = 0
    STARTS = 1
    OUT_OF_MEMORY = 2
    RETRIES = 3


class Clock:
    """Args: path: The file, which is made where there is none."""

    def __init__(self, path):
        if not Path(path).exists():
            Path(path).write_bytes(struct.pack(f"{len(Field)}d", BEGIN, *([0.0] * (len(Field) - 1))))
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)

    def get(self, field=Field.NOW):
        return struct.unpack_from("d", self._map, 8 * field)[0]

    def put(self, value, field=Field.NOW):
        struct.pack_into("d", self._map, 8 * field, value)

    def add(self, value, field=Field.NOW):
        self.put(now := self.get(field) + value, field)
        return now

    def run_controller(self):
        """Time passes here as this process uses its processor."""
        process_time = time.process_time
        last = process_time()

        def now():
            nonlocal last
            before, last = last, process_time()
            return self.add(THINKING * (last - before))

        time.monotonic = now

    def run_worker(self):
        """Time passes here as the card lets it."""
        time.monotonic = time.perf_counter = lambda: self.add(LOOK)
