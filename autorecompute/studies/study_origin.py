"""What a study is about and where it comes from, as ``study.json`` has it and ``show --json`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from autorecompute.documents import INLINED, Absent, Document
from autorecompute.ranges import Number
from autorecompute.studies.problem import Head


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance(Document):
    """What the study is about: its ``study.json``.

    Attributes:
        format: Counts up when studies can no longer be read as they were.
        digest: Sixteen hexadecimal digits, equal for equal problems.
        head: What it is about.
        machine: Digest of the machine that began it; not there where it was imported.
        is_imported: True where it came from an archive; not there otherwise.
    """

    format: Number
    digest: str
    head: Annotated[Head, INLINED]
    machine: str | Absent
    is_imported: Literal[True] | Absent
