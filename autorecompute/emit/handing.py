"""Hands out what to train with: rendered from the config and its settings each time, with the files that it names.

It raises ``SetupError`` where no version that is known reads the config, a file cannot be written, or something in the
study's folder leads elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.registry import render
from autorecompute.emit.formats import require_best
from autorecompute.errors import UsageError
from autorecompute.studies.checked import describe_unconfirmed, is_confirmed_here
from autorecompute.studies.folder import require_plain, stale, write_files

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result
    from autorecompute.studies import StudyFolder


def hand_out(folder: StudyFolder, result: Result) -> Emission:
    """Render the answer to train with: the files that the variables name hold its plans.

    Raises:
        NothingFitsError: the study has no config to train with.
        UsageError: the study was imported and not confirmed here, or the config cannot be written for its version.
    """
    best = require_best(result)
    if not is_confirmed_here(folder, best):
        raise UsageError(describe_unconfirmed(folder.name))
    rendered = render(best.config, best.knobs, result.versions, folder.best)
    if missing := stale(rendered.files):
        require_plain(folder)
        write_files(missing)
    return rendered


def hand_out_if_any(folder: StudyFolder, result: Result | None) -> Emission | None:
    """Render the answer to train with; return ``None`` if nothing may be trained with.

    Raises:
        UsageError: the config cannot be written for its version.
    """
    if result is None or result.best is None or not is_confirmed_here(folder, result.best):
        return None
    return hand_out(folder, result)
