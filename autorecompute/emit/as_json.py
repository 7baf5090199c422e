"""For programs: all that the other formats say, with numbers as numbers and ``null`` where nothing was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result


def render(result: Result, rendered: Emission) -> str:
    """One object: ``environment``, ``config`` (its choices), and where they come from; bytes and seconds throughout.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    # --help asks for the formats, and must import neither NumPy nor cattrs.
    from autorecompute import codec
    from autorecompute.emit.emitted import Emitted

    return f"{codec.dumps(Emitted.of(result, rendered))}\n"
