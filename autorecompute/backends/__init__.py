"""What differs between training systems, behind one small interface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission, Knobs

ORTMODULE = "ortmodule"


def emission_of(backend: str) -> Emission:
    """How configs are switched on from outside the process, in the backend of this name."""
    return cast("Emission", importlib.import_module(f"{__name__}.{backend}.environment"))


def knobs_of(backend: str) -> Knobs:
    """The settings besides recompute, in the backend of this name."""
    return cast("Knobs", importlib.import_module(f"{__name__}.{backend}.knobs"))
