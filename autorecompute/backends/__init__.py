"""What differs between training systems, behind one small interface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType

    from autorecompute.backends.interface import Emission, Knobs

ORTMODULE = "ortmodule"


BACKENDS = (ORTMODULE,)


def emission_of(backend: str) -> Emission:
    """How configs are switched on from outside the process, in the backend of this name.

    Raises:
        UsageError: there is none of this name, which may come from a study that somebody else wrote.
    """
    return cast("Emission", _import(backend, "environment"))


def knobs_of(backend: str) -> Knobs:
    """The settings besides recompute, in the backend of this name.

    Raises:
        UsageError: there is none of this name.
    """
    return cast("Knobs", _import(backend, "knobs"))


def _import(backend: str, part: str) -> ModuleType:
    if backend not in BACKENDS:
        raise UsageError(
            f"'{backend[:40]}' is no training system that this autorecompute knows. Update it, or tune again."
        )
    return importlib.import_module(f"{__name__}.{backend}.{part}")
