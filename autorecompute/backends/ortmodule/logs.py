"""Lets all that ORTModule logs out as it is written, at the level that is asked for.

While a model is exported, ORTModule 1.17 to 1.19 lead the process's output into a temporary file, and print what is
left of it afterwards: a crash in the export takes its last words along, and a debugger's prompt is never seen. Which
level shows the exporter's graph differs from version to version; in 1.19 ``ORTMODULE_LOG_LEVEL`` never does.
"""

from __future__ import annotations

import contextlib
import functools
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

LOG_LEVEL_VARIABLE = "ORTMODULE_LOG_LEVEL"
LOUDEST_LEVEL = "VERBOSE"


def let_out() -> None:
    """Leaves the process's output alone during exports, and shows the exporter's graph at the loudest level only.

    Where the environment sets no level, a script's own ``DebugOptions`` decide about the graph.
    """
    from onnxruntime.training.ortmodule import _logger

    _logger._suppress_os_stream_output = _leave_streams  # noqa: SLF001
    _follow_exports()


@contextlib.contextmanager
def _leave_streams(*_: object, **__: object) -> Iterator[None]:
    yield


def _follow_exports() -> None:
    import torch

    export = torch.onnx.export

    # ORTModule reads the signature of torch.onnx.export: functools.wraps keeps it visible.
    @functools.wraps(export)
    def export_at_level(*args: Any, **kwargs: Any) -> Any:
        if LOG_LEVEL_VARIABLE in os.environ:
            kwargs["verbose"] = os.environ[LOG_LEVEL_VARIABLE] == LOUDEST_LEVEL
        return export(*args, **kwargs)

    torch.onnx.export = export_at_level
