"""For ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value holds."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from autorecompute.emit.provenance import comment_lines, stray_variables

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result


def render(result: Result, rendered: Emission) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable."""
    # A variable that an earlier study left in the same shell may overrule the config without a word.
    unsets = [f"unset {name}" for name in stray_variables(rendered)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *unsets, *exports]) + "\n"
