"""Whether the answer of a study was measured on this machine, which an imported one's was not.

``checked.json`` is written when ``autorecompute check`` finds the config valid here. An import writes none, and an
archive has none.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute import codec

if TYPE_CHECKING:
    from autorecompute.result import Best
    from autorecompute.studies.folder import StudyFolder

CHECKED = "checked.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedHere:
    """The answer that a check has found valid here.

    Attributes:
        config: Hash of its config.
        knobs: Names of the other settings that were on.
    """

    config: str
    knobs: tuple[str, ...] = ()


def keep_check(folder: StudyFolder, best: Best) -> None:
    """Write down that an answer was found valid here.

    Raises:
        SetupError: the folder cannot be written.
    """
    folder.write(CHECKED, codec.to_plain(ConfirmedHere(config=best.config.hash, knobs=best.knobs)))


def is_confirmed_here(folder: StudyFolder, best: Best) -> bool:
    """Tell whether an answer may be trained with: its study was tuned, or its config was checked.

    Raises:
        SetupError: the study cannot be read.
    """
    own = ConfirmedHere(config=best.config.hash, knobs=best.knobs)
    return not folder.is_imported or folder.read(CHECKED, ConfirmedHere) == own


def describe_unconfirmed(name: str) -> str:
    """Return what keeps an imported study from being trained with, and what to do."""
    study = shlex.quote(name)
    return (
        f"Study '{name}' was imported and never confirmed on this machine. Run "
        f"'autorecompute check {study} -- train.py', or tune here: a tuning of the same script starts from it."
    )
