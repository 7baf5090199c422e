"""Notes among the ranks of a training, in the store of their process group.

Nothing here is a collective: a rank writes and reads alone, and whoever waits for a note does so up to a time. So ranks
that fail, or that were started without this tool, keep nobody from training.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOK_SECONDS = 0.005
"""Between two looks of one that waits."""

LOOKS = 20
"""One that waits a moment looks at least so often."""

_NUMBERS = itertools.count()
"""Of the trainings of this process: each rank follows the same ones, in the same order."""


class NoStoreError(Exception):
    """The ranks have nothing to leave notes in, or it does not answer any more."""


class Noticeboard:
    """The notes of one training.

    Attributes:
        rank: The number of this process.
        world_size: How many train together.
        patience_seconds: How long the script has its own collectives wait.

    Raises:
        NoStoreError: there is no process group, or it has no store.
    """

    def __init__(self) -> None:
        from torch import distributed

        if not (distributed.is_available() and distributed.is_initialized()):
            raise NoStoreError("the ranks have no process group when they begin to train")
        self.rank, self.world_size = distributed.get_rank(), distributed.get_world_size()
        try:
            store = distributed.distributed_c10d._get_default_store()  # noqa: SLF001  (nothing public gives a group's store)
            # Of its own connection, where it has one: a read must not wait for the script's.
            own = store.clone() if hasattr(store, "clone") else store
        except (RuntimeError, ValueError, NotImplementedError) as error:
            raise NoStoreError(f"the process group has no store: {error}") from error
        self.patience_seconds = float(store.timeout.total_seconds())
        self._store: Any = distributed.PrefixStore(f"autorecompute/{next(_NUMBERS)}", own)

    def offer(self, key: str, note: bytes) -> bytes:
        """Write a note, unless another rank has written one under this key; return what is there now.

        Raises:
            NoStoreError: the store does not answer.
        """
        try:
            # The answer says that it was written, which that of a plain write does not.
            return bytes(self._store.compare_set(key, "", note.decode()))
        except RuntimeError as error:
            raise NoStoreError(str(error)) from error

    def has(self, *keys: str) -> bool:
        """Tell whether there is a note under each of these keys.

        Raises:
            NoStoreError: the store does not answer.
        """
        try:
            return bool(self._store.check(list(keys)))
        except RuntimeError as error:
            raise NoStoreError(str(error)) from error

    def read(self, key: str) -> bytes | None:
        """Return the note under a key; ``None`` where there is none.

        Raises:
            NoStoreError: the store does not answer.
        """
        if not self.has(key):
            return None
        try:
            return bytes(self._store.get(key))
        except RuntimeError as error:
            raise NoStoreError(str(error)) from error

    def wait(self, keys: Sequence[str], seconds: float, *, unless: str) -> bool:
        """Tell whether all these notes come within so many seconds, and before the one that says that they will not.

        Raises:
            NoStoreError: the store does not answer.
        """
        deadline = time.monotonic() + seconds
        while not self.has(*keys):
            if self.has(unless) or time.monotonic() >= deadline:
                return False
            time.sleep(min(LOOK_SECONDS, seconds / LOOKS))
        return True
