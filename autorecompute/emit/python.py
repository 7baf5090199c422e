"""For a script that is to train without this package: a file that imports the training system alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.emit.provenance import comment_lines, require_best

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result


def render(result: Result, rendered: Emission) -> str:
    """Comments, and the source of a function that the script calls with its model.

    Raises:
        UsageError: the training system has no such form for the config.
    """
    source = backend_of(result.versions).script(require_best(result).config, result.versions)
    return "\n".join([*comment_lines(result, rendered), "", source])
