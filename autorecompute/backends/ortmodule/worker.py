"""The half of the backend that runs inside the user's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.sessions import OrtModuleBackend

if TYPE_CHECKING:
    from pathlib import Path


def make_backend(folder: Path) -> OrtModuleBackend:
    """Return the backend; ``registry`` asks for it.

    Args:
        folder: Where it may write files.
    """
    return OrtModuleBackend(folder)
