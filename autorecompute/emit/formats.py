"""A study's answer as variables to train with, in each format of ``emit``."""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.backends.registry import backend_of
from autorecompute.emit.provenance import comment_lines, require_best, stray_variables
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result

_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_@%+:,./=-]+")


def as_shell(result: Result, rendered: Emission) -> str:
    """Comments, an ``unset`` of what would overrule the config, and an ``export`` for each variable.

    It is for ``eval "$(autorecompute emit STUDY)"``, or a file to source: any POSIX shell reads it, whatever a value
    holds.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    # A variable that an earlier study left in the same shell may overrule the config without a word.
    unsets = [f"unset {name}" for name in stray_variables(rendered)]
    exports = [f"export {name}={shlex.quote(value)}" for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *unsets, *exports]) + "\n"


def as_dotenv(result: Result, rendered: Emission) -> str:
    """Comments and a ``NAME=value`` line for each variable.

    It is for ``docker run --env-file``, Compose, systemd and python-dotenv. Their grammars differ in quotes, in ``$``
    and in ``export``: what is written here means the same to all of them.

    Raises:
        NothingFitsError: the study has no config to train with.
        UsageError: a value has characters that the grammars disagree about.
    """
    lines = [_assign(name, value) for name, value in rendered.variables.items()]
    return "\n".join([*comment_lines(result, rendered), *lines]) + "\n"


def as_json(result: Result, rendered: Emission) -> str:
    """Return all that the other formats say, for programs: ``null`` is not measured, and units are bytes and seconds.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    # --help asks for the formats, and must import neither NumPy nor cattrs.
    from autorecompute import codec
    from autorecompute.emit.emitted import Emitted

    return f"{codec.dumps(Emitted.of(result, rendered))}\n"


def as_python(result: Result, rendered: Emission) -> str:
    """Comments, and the source of a function that a script calls with its model: it imports the training system alone.

    Raises:
        NothingFitsError: the study has no config to train with.
        UsageError: the training system has no such form for the config.
    """
    backend = backend_of(result.versions)
    source = backend.script(require_best(result).config, result.versions)
    # The variable that names the plans has no part in this, and neither has what it needs.
    variables = {name: value for name, value in rendered.variables.items() if name not in backend.VARIABLES}
    how = {"before the model trains": "call apply_recompute(model)"}
    if variables:
        how["to be set in the environment"] = " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)
    return "\n".join([*comment_lines(result, replace(rendered, variables=variables), how), "", source])


def _assign(name: str, value: str) -> str:
    if not _PLAIN_VALUE.fullmatch(value):
        raise UsageError(
            f"{name} has the value {value!r}, which dotenv readers do not agree how to read. "
            "Use --format shell, or keep the study in a folder whose path has only letters, digits and /._-."
        )
    return f"{name}={value}"


RENDERERS: dict[str, Callable[[Result, Emission], str]] = {
    "shell": as_shell,
    "dotenv": as_dotenv,
    "json": as_json,
    "python": as_python,
}
"""By the name of the format."""
