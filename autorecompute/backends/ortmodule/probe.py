"""Lets a variable of ours choose how ORT looks for plans, which no variable of ORT's own does.

ORT finds plans everywhere in the graph, or within the boundaries of transformer layers only. Its levels look within the
layers and switch on all they find; plans that are chosen one by one are looked for everywhere, and the option that
decides (``recompute_probe_config``) is read from no variable. Where ``AUTORECOMPUTE_ORT_PROBE`` is set, it decides
instead, in every process that is adapted: through ``autorecompute run``, or ``import autorecompute.compat``.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import TYPE_CHECKING, Any

from autorecompute.backends.ortmodule.environment import PROBE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS = "onnxruntime.training.ortmodule.options"


def install() -> bool:
    """Has ORTModule's options read the variable, as soon as they are imported; says whether it is set.

    Calling it again is harmless.
    """
    if not os.environ.get(PROBE_VARIABLE):
        return False
    if OPTIONS in sys.modules:
        read_probe_too(sys.modules[OPTIONS])
    elif not any(isinstance(finder, OptionsWatch) for finder in sys.meta_path):
        # ORTModule must not be imported from here: that may be what is going on at this moment.
        sys.meta_path.insert(0, OptionsWatch())
    return True


class OptionsWatch:
    """An import hook that finds ORTModule's options as the finders behind it do."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """What the other finders find of the options; leaves every other import to them."""
        if fullname != OPTIONS:
            return None
        finders = [finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec")]
        specs = (finder.find_spec(fullname, path, target) for finder in finders)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = _and_then(spec.loader.exec_module, read_probe_too)  # type: ignore[assignment, method-assign]
        return spec


def _and_then(execute: Callable[[Any], None], call: Callable[[Any], None]) -> Callable[[Any], None]:
    def execute_and_call(module: Any) -> None:
        execute(module)
        call(module)

    return execute_and_call


def read_probe_too(options: Any) -> None:
    """Has every set of options that is made from now on read our variable after ORT's own.

    Args:
        options: The module that defines them.
    """
    read = options._RuntimeOptions._override_from_env_vars  # noqa: SLF001
    if getattr(read, "reads_probe", False):
        return

    @functools.wraps(read)
    def read_all(chosen: Any) -> None:
        read(chosen)
        # A level looks within layers by itself.
        if chosen.memory_optimization_level == 0:
            chosen.recompute_probe_config = os.environ.get(PROBE_VARIABLE, chosen.recompute_probe_config)

    read_all.reads_probe = True  # type: ignore[attr-defined]
    options._RuntimeOptions._override_from_env_vars = read_all  # noqa: SLF001
