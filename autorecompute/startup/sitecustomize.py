"""Loaded by Python at the start of a process that ``autorecompute run`` began; see this folder's ``__init__``.

It runs at the start of every Python process below that command, so it imports only what is nearly free there.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing's is the same, and typing is slow to load
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ORTMODULE = "onnxruntime.training.ortmodule"
WRAP_VARIABLE = "AUTORECOMPUTE_WRAP"


class OrtModuleWatch:
    """An import hook that finds no module, and adapts ORTModule just before Python looks for it."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        """Leaves every import to the finders behind this one."""
        if fullname == ORTMODULE:
            adapt_ortmodule()


def adapt_ortmodule() -> None:
    """Repairs what ORTModule needs of the installed torch, or tells on stderr why it cannot."""
    try:
        from autorecompute.backends.ortmodule.adapter import adapt

        adapt()
    except ImportError as error:
        sys.stderr.write(
            f"autorecompute: ORTModule goes on without being adapted to this PyTorch ({error}); "
            f"install autorecompute for {sys.executable}, or import what it misses there.\n"
        )


class TorchWatch:
    """An import hook that finds torch as the finders behind it do, and has models wrapped as soon as it is imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find of torch; leaves every other import to them."""
        if fullname != "torch":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            call_after_import(spec, wrap_models)
        return spec


def call_after_import(spec: Any, function: Callable[[], None]) -> None:
    """Has the function called when the module of this spec has been imported."""
    execute = spec.loader.exec_module

    def execute_and_call(module: object) -> None:
        execute(module)
        function()

    spec.loader.exec_module = execute_and_call


def wrap_models() -> None:
    """Has ORTModule train the model of this process, or tells on stderr why it cannot."""
    try:
        from autorecompute.backends.ortmodule.wrapping import install

        install()
    except ImportError as error:
        sys.stderr.write(
            f"autorecompute: the model trains in plain PyTorch, as nothing can wrap it here ({error}); "
            f"install autorecompute for {sys.executable}.\n"
        )


def run_shadowed() -> None:
    """Runs the ``sitecustomize`` that Python would have loaded without this folder, in its rightful place."""
    spec = PathFinder.find_spec(__name__, _entries_behind())
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    # Python hands out what it finds here: to everyone else, the shadowed module is the one that was imported.
    sys.modules[__name__] = module = module_from_spec(spec)
    spec.loader.exec_module(module)


def _entries_behind() -> list[str]:
    own = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120  (pathlib is not loaded yet, and slow to load)
    places = [os.path.realpath(entry) for entry in sys.path]
    # What stands before this folder may itself have led here: running it again would never end.
    start = places.index(own) + 1 if own in places else len(places)
    return [entry for entry, place in zip(sys.path[start:], places[start:], strict=True) if place != own]


if __name__ == "sitecustomize":
    sys.meta_path.insert(0, OrtModuleWatch())
    if os.environ.get(WRAP_VARIABLE):
        sys.meta_path.insert(0, TorchWatch())
    run_shadowed()
