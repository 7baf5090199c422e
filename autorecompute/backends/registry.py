"""The training systems by name. No other module names one."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from autorecompute.backends import imports
from autorecompute.backends.auto import AutoBackend
from autorecompute.errors import SetupError
from autorecompute.units import printable

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Collection, Mapping

    from autorecompute.backends.interface import ControllerBackend, Emission, JoiningBackend, WorkerBackend
    from autorecompute.plans import Config

AUTO = "auto"
"""Whichever training system the script uses."""

PACKAGES = {"ortmodule": "autorecompute.backends.ortmodule", "torch": "autorecompute.backends.torch"}
"""The folder of each, as a package: its module ``controller`` is one half, what its ``worker`` makes is the other."""


def controller(name: str) -> ControllerBackend:
    """Return the controller's half of the backend of this name.

    Raises:
        SetupError: there is none.
    """
    return cast("ControllerBackend", _load(name, "controller"))


def controllers() -> list[ControllerBackend]:
    """Return the controller's half of every backend."""
    return [controller(name) for name in PACKAGES]


def plain_name() -> str:
    """Return the backend that trains every script, as it is."""
    return next(backend.NAME for backend in controllers() if not backend.USED_BY)


def known_cards() -> tuple[str, ...]:
    """Return the cards whose kernels and allocator fake tensors can have."""
    return tuple(card for backend in controllers() for card in backend.CARDS)


def worker(name: str, folder: Path) -> WorkerBackend:
    """Return the half inside the user's process of the backend of this name.

    Args:
        name: One of them, or ``AUTO``.
        folder: Where it may write files; whoever gave it removes it.

    Raises:
        SetupError: there is none of this name.
    """
    if name != AUTO:
        return cast("WorkerBackend", _load(name, "worker").make_backend(folder))
    others = {backend.USED_BY: backend for backend in controllers() if backend.USED_BY}
    leaves = functools.partial(_holds_class_of, tuple(others))
    made = _load(plain_name(), "worker").make_backend(folder, leaves=leaves)
    return AutoBackend(made, others, lambda backend: worker(backend.NAME, folder))


def plain_worker() -> JoiningBackend:
    """Return the half inside the user's process of the backend that trains every script as it is."""
    return cast("JoiningBackend", worker(plain_name(), Path()))


def is_decided() -> bool:
    """Tell whether a tuner, or the environment, has decided already what this process recomputes."""
    return cast("bool", _load(plain_name(), "switch.applying").is_decided())


def other_in_use(name: str) -> str:
    """Return the name of another backend whose training system this process has imported; empty where there is none."""
    others = (backend for backend in controllers() if name != backend.NAME and backend.USED_BY)
    return next((backend.NAME for backend in others if backend.USED_BY in sys.modules), "")


def when_imported(name: str, call: Callable[[], None]) -> None:
    """Call a function once this process has imported torch, and again once it has a package that a backend is for.

    Args:
        name: The backend's name, or ``AUTO`` for any of them.
        call: What is called. It may import all that the backend is made of: nothing of that is half imported then.
    """
    chosen = controllers() if name == AUTO else [controller(name)]
    packages = [backend.USED_BY.partition(".")[0] for backend in chosen if backend.USED_BY]
    for package in ("torch", *packages):
        imports.when_imported(package, lambda _module: call())


def _holds_class_of(packages: tuple[str, ...], module: Any) -> bool:
    """Tell whether a torch module, or one in it, is of a class of these packages."""
    if any(f"{type(module).__module__}.".startswith(f"{package}.") for package in packages):
        return True
    return any(_holds_class_of(packages, child) for child in module.children())


def backend_of(versions: Mapping[str, str]) -> ControllerBackend:
    """Return the backend that trained with these versions, as a detection or a result has them.

    Raises:
        SetupError: this autorecompute does not know it.
    """
    return controller(versions.get("backend", ""))


def variables() -> tuple[str, ...]:
    """Return all environment variables that decide about recompute in any of them."""
    return tuple(dict.fromkeys(name for backend in controllers() for name in backend.VARIABLES))


def trial_variables(name: str) -> dict[str, str]:
    """Return what is set for trials of the backend of this name, or of any where it is ``AUTO``."""
    chosen = controllers() if name == AUTO else [controller(name)]
    return {variable: value for backend in chosen for variable, value in backend.TRIAL_VARIABLES.items()}


def cache_variables() -> tuple[str, ...]:
    """Return all environment variables that name a folder for compiled code."""
    return tuple(dict.fromkeys(name for backend in controllers() for name in backend.CACHE_VARIABLES))


def render(config: Config, knobs: Collection[str], versions: Mapping[str, str], folder: Path) -> Emission:
    """Return what makes an unmodified script train with a config; derived each time, and stored nowhere.

    Args:
        config: What to recompute.
        knobs: Names of the other settings that are on.
        versions: Versions of what trains, as a detection has them; ``backend`` among them.
        folder: Where files lie that the variables name.

    Raises:
        SetupError: these versions read no config of this form.
        UsageError: the config cannot be written for them, or there is no knob of one of these names.
    """
    return backend_of(versions).render(config, knobs=knobs, versions=versions, folder=folder)


def apply_plans(model: Any, plans: str | os.PathLike[str] | None) -> None:
    """Have a model recompute what a file of plans says; see :func:`autorecompute.apply`.

    Raises:
        UsageError: the file cannot be read, or was measured on another model.
    """
    _load(plain_name(), "switch.applying").apply(model, plans)


def _load(name: str, half: str) -> Any:
    # The name may come from a file, and must not choose what is imported.
    if name not in PACKAGES:
        raise SetupError(
            f"This autorecompute knows no training system '{printable(name, '')}'. Install the version that does."
        )
    try:
        package = importlib.import_module(PACKAGES[name])
        if hasattr(package, "require"):
            package.require()
        return importlib.import_module(f"{PACKAGES[name]}.{half}")
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in {"", __name__.partition(".")[0]}:
            raise
        raise SetupError(
            f"The backend {name} needs the package {missing}, and {sys.executable} does not have it. Install "
            "autorecompute where the script trains; 'autorecompute doctor' there says what is missing."
        ) from error
