"""What differs between training systems, behind one small interface."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from autorecompute.backends.interface import Rendered
from autorecompute.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from types import ModuleType

    from autorecompute.backends.interface import Emission, Knobs
    from autorecompute.plans import Config

__all__ = ["ORTMODULE", "Rendered", "emission_of", "knobs_of", "render"]

ORTMODULE = "ortmodule"
BACKENDS = (ORTMODULE,)


def emission_of(backend: str) -> Emission:
    """How configs are switched on from outside the process, in the backend of this name."""
    return cast("Emission", _module(backend, "environment"))


def knobs_of(backend: str) -> Knobs:
    """The settings besides recompute, in the backend of this name."""
    return cast("Knobs", _module(backend, "knobs"))


def render(config: Config, knobs: Collection[str], versions: Mapping[str, str], folder: Path) -> Rendered:
    """What makes an unmodified script train with a config; derived each time, and stored nowhere.

    Args:
        config: What to recompute.
        knobs: Names of the other settings that are on.
        versions: Versions of what trains, as a detection has them; ``backend`` among them.
        folder: Where files lie that the variables name.

    Raises:
        SetupError: these versions read no config of this form.
        UsageError: the config cannot be written for them, or there is no knob of one of these names.
    """
    return emission_of(versions.get("backend", "")).render(config, knobs=knobs, versions=versions, folder=folder)


def _module(backend: str, name: str) -> ModuleType:
    # The name may come from a file, and must not choose what is imported.
    if backend not in BACKENDS:
        raise SetupError(f"This autorecompute knows no training system '{backend}'. Install the version that does.")
    return importlib.import_module(f"{__name__}.{backend}.{name}")
