"""Calls functions at the moment a module is imported, without importing it first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def when_imported(name: str, change: Callable[[Any], None], before: Callable[[], None] | None = None) -> None:
    """Call a function with a module as soon as it has been imported: now, if it has been already.

    Args:
        name: The module's full name.
        change: Gets the module; with the same function again, nothing more happens.
        before: Called just before the module runs.
    """
    if name in sys.modules:
        change(sys.modules[name])
    elif not any(isinstance(finder, ImportWatch) and finder.is_for(name, change) for finder in sys.meta_path):
        # The module must not be imported from here: that may be what is going on at this moment.
        sys.meta_path.insert(0, ImportWatch(name, change, before))


class ImportWatch:
    """An import hook that finds one module as the finders behind it do, and is gone once that has run.

    Who only looks a module up, as ``importlib.util.find_spec`` does, has not imported it.

    Args:
        name: The module's full name.
        change: Gets the module when it has run.
        before: Called just before it runs.
    """

    def __init__(self, name: str, change: Callable[[Any], None], before: Callable[[], None] | None = None) -> None:
        self._name, self._change, self._before = name, change, before
        self._is_running = False

    def is_for(self, name: str, change: Callable[[Any], None]) -> bool:
        """Tell whether it watches this module for this function."""
        return (self._name, self._change) == (name, change)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the finders behind it find of the module; leave every other import to them."""
        if fullname != self._name or self not in sys.meta_path:
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
            if module.__name__ != self._name or self._is_running or self not in sys.meta_path:
                execute(module)
            else:
                self._run(execute, module)

        return execute_and_tell

    def _run(self, execute: Callable[[Any], None], module: Any) -> None:
        self._is_running = True
        try:
            if self._before is not None:
                self._before()
            execute(module)
        finally:
            self._is_running = False
        sys.meta_path.remove(self)
        self._change(module)
