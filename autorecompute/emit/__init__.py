"""A study's answer as variables to train with, one module to a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends import render
from autorecompute.emit import as_json, dotenv, shell
from autorecompute.emit.provenance import require_best
from autorecompute.studies.writing import write_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends import Rendered
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder

__all__ = ["RENDERERS", "give_out", "give_out_if_any"]

RENDERERS: dict[str, Callable[[Result, Rendered], str]] = {
    "shell": shell.render,
    "dotenv": dotenv.render,
    "json": as_json.render,
}
"""By the name of the format."""


def give_out(folder: StudyFolder, result: Result) -> Rendered:
    """What to train with, for whoever asks for it: the files that the variables name hold the answer's plans.

    Args:
        folder: The study, where it lies now.
        result: Its answer.

    Raises:
        NothingFitsError: the study has no config to train with.
        SetupError: no version that is known reads the config, or a file cannot be written.
        UsageError: the config cannot be written for its version.
    """
    best = require_best(result)
    rendered = render(best.config, best.knobs, result.versions, folder.best)
    write_files(rendered.files)
    return rendered


def give_out_if_any(folder: StudyFolder, result: Result | None) -> Rendered | None:
    """What to train with, for whoever is told of a study; ``None`` where there is nothing.

    Raises:
        SetupError: no version that is known reads the config, or a file cannot be written.
        UsageError: the config cannot be written for its version.
    """
    return None if result is None or result.best is None else give_out(folder, result)
