"""Lets all that ORTModule logs out as it is written, at the level that is asked for.

While a model is exported, ORTModule 1.17 to 1.19 lead the process's output into a temporary file, and print what is
left of it afterwards: a crash in the export takes its last words along, and a debugger's prompt is never seen. Which
level shows the exporter's graph differs from version to version; in 1.19 ``ORTMODULE_LOG_LEVEL`` never does.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.export_options import add_options

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG_LEVEL_VARIABLE = "ORTMODULE_LOG_LEVEL"
LOUDEST_LEVEL = "VERBOSE"


def let_out() -> None:
    """Leave the process's output alone during exports, and show the exporter's graph at the loudest level only.

    Where the environment sets no level, a script's own ``DebugOptions`` decide about the graph.
    """
    from onnxruntime.training.ortmodule import _logger

    _logger._suppress_os_stream_output = _leave_streams  # noqa: SLF001
    add_options(_verbosity)


@contextlib.contextmanager
def _leave_streams(*_: object, **__: object) -> Iterator[None]:
    yield


def _verbosity() -> dict[str, bool]:
    level = os.environ.get(LOG_LEVEL_VARIABLE)
    return {} if level is None else {"verbose": level == LOUDEST_LEVEL}
