"""What a recording has measured so far, kept so that it can be gone on with."""

from __future__ import annotations

import json
import os


class Journal:
    """A JSON object a line, the first of which says what is recorded; a half-written last line is dropped.

    Args:
        file: Where it is kept.

    Attributes:
        head: The first line; ``None`` where there is none yet.
        rows: The measurements.
    """

    def __init__(self, file):
        self._file = file
        lines = read_lines(file) if file.exists() else []
        self.head, self.rows = (lines[0] if lines else None), lines[1:]
        if file.exists():
            # The next line would be glued to it.
            os.truncate(file, file.read_bytes().rfind(b"\n") + 1)

    def begin(self, head):
        """Writes what the table is about."""
        self.head = head
        self._append(head)

    def add(self, row):
        """Writes one measurement."""
        self.rows.append(row)
        self._append(row)

    def _append(self, value):
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")


def read_lines(file):
    """The lines of a journal, which may still be growing: a half-written last one is left out."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").split("\n")[:-1]]
