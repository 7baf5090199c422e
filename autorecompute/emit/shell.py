"""For ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from autorecompute.emit.provenance import comment_lines, stray_variables

if TYPE_CHECKING:
    from autorecompute.backends import Rendered
    from autorecompute.result import Result


def render(result: Result, rendered: Rendered) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable."""
    # A level that an earlier study left in the same shell makes ORTModule ignore the plans without a word.
    unsets = [f"unset {name}" for name in stray_variables(rendered, result)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *unsets, *exports]) + "\n"
