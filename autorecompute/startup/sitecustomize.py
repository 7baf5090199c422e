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
OURS = "autorecompute.backends."  # functions are called from modules below this one alone, whatever the variable says
BEFORE, AFTER = "before", "after"


class ImportWatch:
    """An import hook that finds one module as the finders behind it do, and is gone once that has run.

    Who only looks a module up, as ``importlib.util.find_spec`` does, has not imported it. ``before`` is called just
    before the module runs, and ``after`` with the module when it has run.
    """

    def __init__(
        self, module: str, before: Callable[[], None] | None = None, after: Callable[[Any], None] | None = None
    ) -> None:
        self.module, self.before, self.after = module, before, after
        self._is_running = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the finders behind it find of the module; leave every other import to them."""
        if fullname != self.module or self not in sys.meta_path:
            return None
        # Those in front were asked before: one of them that asks this one in turn would never come to an end.
        behind = sys.meta_path[sys.meta_path.index(self) + 1 :]
        specs = (finder.find_spec(fullname, path, target) for finder in behind if hasattr(finder, "find_spec"))
        spec: Any = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self._around(spec.loader.exec_module)
        return spec

    def _around(self, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        def execute_and_tell(module: Any) -> None:
            # One loader may load many modules: it was met before, and is met again.
            if module.__name__ != self.module or self._is_running or self not in sys.meta_path:
                execute(module)
                return
            self._is_running = True
            try:
                if self.before is not None:
                    self.before()
                execute(module)
            finally:
                self._is_running = False
            sys.meta_path.remove(self)
            if self.after is not None:
                self.after(module)

        return execute_and_tell


def watch_for(hook: str) -> ImportWatch | None:
    """Return what calls the function of a hook; ``None`` where the text is no hook of ours."""
    when, module, function, missed = (hook.split(" ", 3) + [""] * 3)[:4]
    if when not in {BEFORE, AFTER} or not function.startswith(OURS):
        return None

    def call(_module: Any = None) -> None:
        name, _, attribute = function.partition(":")
        try:
            __import__(name)
            getattr(sys.modules[name], attribute)()
        except ImportError as error:
            sys.stderr.write(
                f"autorecompute: {missed} ({error}); install autorecompute for {sys.executable}, or import what "
                "it misses there.\n"
            )

    return ImportWatch(module, before=call) if when == BEFORE else ImportWatch(module, after=call)


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
    if (watch := watch_for(os.environ.get(HOOKS_VARIABLE, ""))) is not None:
        sys.meta_path.insert(0, watch)
    run_shadowed()
