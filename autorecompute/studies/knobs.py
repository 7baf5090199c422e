"""What a study keeps of its knobs: ``knobs.json``, plans files in ``knobs/``, the output of ``workers/KNOB/``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.knobs import KnobStudy
from autorecompute.studies.folder import saying_what_fails

if TYPE_CHECKING:
    from pathlib import Path

    from autorecompute.studies.folder import StudyFolder

KNOBS = "knobs.json"


class KnobFolder:
    """The part of a study's folder that is about knobs.

    Args:
        folder: The study.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self._folder = folder

    def known(self) -> KnobStudy | None:
        """What is known of the knobs; ``None`` where none was turned.

        Raises:
            SetupError: the file cannot be read.
        """
        return self._folder.read(KNOBS, KnobStudy)

    def keep(self, knobs: KnobStudy) -> None:
        """Writes down what is known of the knobs.

        Raises:
            SetupError: the folder cannot be written.
        """
        self._folder.write(KNOBS, codec.to_plain(knobs))

    def plans_file(self, config_hash: str) -> Path:
        """The plans file of a config that is compared, in a folder that is there."""
        return _made(self._folder.path / "knobs") / f"{config_hash}.json"

    def logs(self, knob: str) -> Path:
        """The folder of the output of the workers that a knob is looked at in, which is there."""
        return _made(self._folder.workers / knob)


def _made(folder: Path) -> Path:
    with saying_what_fails(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder
