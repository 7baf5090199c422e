"""Recompute in plain PyTorch: what a model offers, how it is switched on, and what memory a step needs with it."""

import re
import sys

from autorecompute.errors import SetupError

OLDEST = "2.6"  # the oldest torch that a model is recomputed in


def is_too_old(version: str) -> bool:
    """Tell whether a version of torch is older than ``OLDEST``."""
    release = tuple(map(int, re.findall(r"\d+", version)[:2]))
    return release < tuple(map(int, OLDEST.split(".")))


def require() -> None:
    """Check that the torch of this process, where it has imported one, is new enough.

    Raises:
        SetupError: It is not.
    """
    version = getattr(sys.modules.get("torch"), "__version__", OLDEST)
    if is_too_old(version):
        raise SetupError(
            f"torch {version} is older than {OLDEST}, the oldest that can be tuned. Install a newer torch."
        )
