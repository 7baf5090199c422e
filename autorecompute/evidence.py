"""What trainings found out about a config after it was chosen, kept beside its study.

A training that ``run`` or ``train`` starts is told the file by a variable of its environment, and adds a line to it.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from autorecompute import codec
from autorecompute.measurement import Outcome
from autorecompute.result import Rejection

if TYPE_CHECKING:
    from collections.abc import MutableMapping
    from pathlib import Path

    from autorecompute.plans import Config

VARIABLE = "AUTORECOMPUTE_EVIDENCE"
"""Names the file; unset where no study is behind a config."""

NAME = "evidence.jsonl"
LARGEST_FILE = 1 << 20
"""Bytes that are read: thousands of trainings."""


class _Taken:
    """What :func:`take` has found."""

    file = ""


def take(environment: MutableMapping[str, str]) -> None:
    """Keep evidence in the file that an environment names, and take its name out: a script must not see it."""
    _Taken.file = environment.pop(VARIABLE, "")


def add_evidence(config: Config, reason: str) -> None:
    """Add that the gradients of a config are wrong, where the environment names a file for it.

    A file that cannot be written keeps no training from going on.
    """
    if not (file := _Taken.file or os.environ.get(VARIABLE)):
        return
    line = codec.encode(Rejection(config=config, outcome=Outcome.WRONG_GRADIENT, reason=reason)) + b"\n"
    with contextlib.suppress(OSError):
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        with os.fdopen(descriptor, "wb", buffering=0) as stream:
            stream.write(line)


def read_evidence(file: Path) -> list[Rejection]:
    """Return what trainings added, each config once; a line that was cut short is left out.

    Raises:
        OSError: It cannot be read.
    """
    if not file.is_file():
        return []
    with file.open("rb") as stream:
        lines = stream.read(LARGEST_FILE).splitlines()
    found: dict[Config, Rejection] = {}
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            rejection = codec.decode(line, Rejection)
            found.setdefault(rejection.config, rejection)
    return list(found.values())
