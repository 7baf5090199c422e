"""For ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from autorecompute.emit.provenance import comment_lines, require_best, stray_variables

if TYPE_CHECKING:
    from autorecompute.result import Result


def render(result: Result) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    best = require_best(result)
    # A level that an earlier study left in the same shell makes ORTModule ignore the plans without a word.
    unsets = [f"unset {name}" for name in stray_variables(best, result)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in best.environment.items()]
    return "\n".join([*comment_lines(result), *unsets, *exports]) + "\n"
