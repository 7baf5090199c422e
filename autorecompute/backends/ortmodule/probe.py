"""Lets a variable of ours choose how ORT looks for plans, which no variable of ORT's own does.

ORT finds plans everywhere in the graph, or within the boundaries of transformer layers only. Its levels look within the
layers and switch on all they find; plans that are chosen one by one are looked for everywhere, and the option that
decides (``recompute_probe_config``) is read from no variable. Where ``AUTORECOMPUTE_ORT_PROBE`` is set, it decides
instead, in every process that is adapted: through ``autorecompute run``, or ``import autorecompute.compat``.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from autorecompute.backends.imports import when_imported
from autorecompute.backends.ortmodule.environment import PROBE_VARIABLE

OPTIONS = "onnxruntime.training.ortmodule.options"


def install() -> bool:
    """Have ORTModule's options read the variable, as soon as they are imported; say whether it is set.

    Calling it again is harmless.
    """
    is_set = bool(os.environ.get(PROBE_VARIABLE))
    if is_set:
        when_imported(OPTIONS, read_probe_too)
    return is_set


def read_probe_too(options: Any) -> None:
    """Have every set of options that is made from now on read our variable after ORT's own.

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
