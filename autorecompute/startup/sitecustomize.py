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

HOOKS_VARIABLE = "AUTORECOMPUTE_HOOKS"
OURS = "autorecompute.backends."
"""Functions are called from modules below this one alone, whatever the variable says."""


class Watch:
    """An import hook that calls a function when a module is imported, and leaves the import to other finders.

    Args:
        module: The module that is waited for.
        function: What is called, as ``package.module:function``.
        missed: What happens in this process if it cannot be called, in words.
    """

    def __init__(self, module: str, function: str, missed: str) -> None:
        self.module, self.function, self.missed = module, function, missed

    def call(self) -> None:
        """Call the function, or tell on stderr why that cannot be done."""
        name, _, attribute = self.function.partition(":")
        try:
            __import__(name)
            getattr(sys.modules[name], attribute)()
        except ImportError as error:
            sys.stderr.write(
                f"autorecompute: {self.missed} ({error}); install autorecompute for {sys.executable}, or import what "
                "it misses there.\n"
            )


class Before(Watch):
    """Calls just before Python looks for the module."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        """Find nothing."""
        if fullname == self.module:
            self.call()


class After(Watch):
    """Calls as soon as the module has been imported."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the finders behind it find of the module; leave every other import to them."""
        if fullname != self.module or self not in sys.meta_path:
            return None
        # Those in front were asked before: one of them that asks this one in turn would never come to an end.
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            call_after_import(spec, self.call)
        return spec


def call_after_import(spec: Any, function: Callable[[], None]) -> None:
    """Have the function called when the module of this spec has been imported."""
    execute = spec.loader.exec_module

    def execute_and_call(module: object) -> None:
        execute(module)
        function()

    spec.loader.exec_module = execute_and_call


KINDS: dict[str, type[Before | After]] = {"before": Before, "after": After}


def watches(text: str) -> list[Before | After]:
    """Parse the variable; anything in it that is not ours is left out."""
    found: list[Before | After] = []
    for entry in filter(None, text.split(";")):
        when, module, function, missed = (entry.split(" ", 3) + [""] * 3)[:4]
        if when in KINDS and function.startswith(OURS):
            found.append(KINDS[when](module, function, missed))
    return found


def run_shadowed() -> None:
    """Run the ``sitecustomize`` that Python would have loaded without this folder, in its rightful place."""
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
    sys.meta_path[:0] = watches(os.environ.get(HOOKS_VARIABLE, ""))
    run_shadowed()
