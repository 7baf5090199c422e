"""Passes on what workers print while they print it."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, BinaryIO, Self

if TYPE_CHECKING:
    from pathlib import Path

POLL_SECONDS = 0.1


class Follower:
    """Copies the workers' logs to a stream as they grow; a context manager that has copied all of them at its end.

    The worker writes to a file, never to a pipe of ours: whatever becomes of this process, nothing that it prints is
    lost, and nothing holds it up.

    Args:
        logs: The folder of the logs.
        stream: Where they are copied to, byte for byte.
    """

    def __init__(self, logs: Path, stream: BinaryIO) -> None:
        self._logs, self._stream = logs, stream
        self._copied: dict[Path, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            self._copy()
        self._copy()

    def _copy(self) -> None:
        for path in sorted(self._logs.glob("*.log")):
            with path.open("rb") as log:
                log.seek(self._copied.get(path, 0))
                self._stream.write(log.read())
                self._copied[path] = log.tell()
        self._stream.flush()
