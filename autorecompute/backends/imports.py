"""Calls functions at the moment a module is imported, without importing it first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from autorecompute.startup.sitecustomize import ImportWatch

if TYPE_CHECKING:
    from collections.abc import Callable


def when_imported(name: str, change: Callable[[Any], None], before: Callable[[], None] | None = None) -> None:
    """Call a function with a module as soon as it has been imported: now, if it has been already.

    Args:
        name: The module's full name.
        change: Gets the module; with the same function again, nothing more happens.
        before: Called just before the module runs.
    """
    watches = [finder for finder in sys.meta_path if isinstance(finder, ImportWatch)]
    if name in sys.modules:
        change(sys.modules[name])
    elif not any((watch.module, watch.after) == (name, change) for watch in watches):
        # The module must not be imported from here: that may be what is going on at this moment.
        sys.meta_path.insert(0, ImportWatch(name, before, change))
