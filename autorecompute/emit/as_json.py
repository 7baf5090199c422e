"""For programs: all that the other formats say, with numbers as numbers and ``null`` where nothing was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute import codec

if TYPE_CHECKING:
    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result


def render(result: Result, rendered: Emission) -> str:
    """One object: ``environment``, ``config`` (its choices), and where they come from; bytes and seconds throughout.

    Raises:
        NothingFitsError: the study has no config to train with.
    """
    from autorecompute.emit.emitted import Emitted  # the records it is made of import NumPy, which --help must not

    return f"{codec.dumps(Emitted.of(result, rendered))}\n"
