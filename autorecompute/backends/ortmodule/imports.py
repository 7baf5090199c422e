"""Changes a module of ORTModule's at the moment it is imported, without importing it first."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def when_imported(name: str, change: Callable[[Any], None]) -> None:
    """Calls the function with a module as soon as it is imported: now, if it has been imported already.

    Args:
        name: The module's full name.
        change: Gets the module; with the same function again, nothing more happens.
    """
    if name in sys.modules:
        change(sys.modules[name])
    elif not any(isinstance(finder, ImportWatch) and finder.is_for(name, change) for finder in sys.meta_path):
        # The module must not be imported from here: that may be what is going on at this moment.
        sys.meta_path.insert(0, ImportWatch(name, change))


class ImportWatch:
    """An import hook that finds one module as the finders behind it do.

    Args:
        name: The module's full name.
        change: Gets the module when it has been executed.
    """

    def __init__(self, name: str, change: Callable[[Any], None]) -> None:
        self._name, self._change = name, change

    def is_for(self, name: str, change: Callable[[Any], None]) -> bool:
        """Whether it watches this module for this function."""
        return (self._name, self._change) == (name, change)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find of the module; leaves every other import to them."""
        if fullname != self._name:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _and_then(spec.loader.exec_module, self._change)  # type: ignore[assignment, method-assign]
        return spec


def _and_then(execute: Callable[[Any], None], change: Callable[[Any], None]) -> Callable[[Any], None]:
    def execute_and_change(module: Any) -> None:
        execute(module)
        change(module)

    return execute_and_change
