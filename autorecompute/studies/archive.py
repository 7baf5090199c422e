"""A study as one portable file: JSON lines, each an object with one key that tells what it holds.

The first line is ``study``, the last one ``end``; :mod:`autorecompute.schemas` has a schema of them all. Paths in
commands and messages are cut down to names of files, and nothing of the machine is kept but what figures depend on.
The same study gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from autorecompute import codec
from autorecompute.documents import INLINED, Document
from autorecompute.measurement import Trial
from autorecompute.ranges import PositiveCount
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.batch_studies import BatchRecord
from autorecompute.studies.problem import Head
from autorecompute.studies.race_record import RaceRecord
from autorecompute.training_job import Detection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.studies.records import StudyRecords

FORMAT: Final = "autorecompute study archive"
VERSION: Final = 3
GZIP_SUFFIX = ".gz"
COMMAND = "command"
"""The field that holds the words of a command."""

IN_WORDS = frozenset(
    ("message", "trace", "warnings", "marks", "reason", "unconfirmed", "why_not", "refusals", "no_steps")
)
"""The fields with words for people, which may name files. In all others a slash is no path's: ``*/gelu`` is a site."""

_FOLDERS = re.compile(r"\A(?!//)~?/(?:[^/]*/)*(?=[^/])")
"""All of an absolute path but its last part."""

_QUOTED = re.compile(r"(?P<quote>[\"'`])(?P<path>~?/(?:(?!(?P=quote))[^\n])*)(?P=quote)")
"""A path in quotes, as Python and our own messages have it, which may have spaces in it."""

_PATH = re.compile(r"(?<![\w/.*)])(?!//)~?/(?:[^\s/\"'`,;:()\[\]]+/)*(?=[^\s/\"'`,;:()\[\]])")
"""All of an absolute path but its last part, among words. What comes after ``*`` or ``)`` belongs to a site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLine(Document):
    """First line: what the study is about, and where it comes from.

    Attributes:
        format: What the file is.
        version: Counts up when older archives can no longer be read.
        digest: Sixteen hexadecimal digits, equal for equal problems.
        head: What the study is about; absolute paths in its command are cut down to names.
    """

    format: Literal["autorecompute study archive"] = FORMAT
    version: Literal[3] = VERSION
    digest: str
    head: Annotated[Head, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLine:
    """Last line.

    Attributes:
        lines: How many lines there are, with this one.
    """

    lines: PositiveCount


SINGLE: dict[str, type[Any]] = {
    "race": RaceRecord,
    "batches": BatchRecord,
    "analysis": Analysis,
    "detection": Detection,
    "result": Result,
}
"""What an archive has a line of at most, by the line's key."""

SEVERAL: dict[str, type[Any]] = {"trial": Trial, "rejection": Rejection, "confirmed": Best}
LINES: dict[str, type[Any]] = {"study": FirstLine, **SEVERAL, **SINGLE, "end": LastLine}
"""The record of each line, by its only key."""


def dump(records: StudyRecords) -> bytes:
    """Return the archive of a study."""
    lines = [json.dumps(line, allow_nan=False, separators=(",", ":")) for line in _lines(_portable(records))]
    end = json.dumps({"end": codec.to_plain(LastLine(lines=len(lines) + 1))}, separators=(",", ":"))
    return "".join(f"{line}\n" for line in (*lines, end)).encode()


def compress(archive: bytes) -> bytes:
    """Return the archive as gzip has it, the same each time."""
    return gzip.compress(archive, mtime=0)


def _portable(records: StudyRecords) -> StudyRecords:
    result, detection = records.result, records.detection
    if result is not None:
        result = replace(result, device=replace(result.device, uuid=""))
    if detection is not None:
        detection = replace(detection, device=replace(detection.device, uuid=""))
    return replace(records, result=result, detection=detection)


def _lines(records: StudyRecords) -> Iterator[dict[str, Any]]:
    yield _line("study", codec.to_plain(FirstLine(digest=records.head.problem.digest, head=records.head)))
    for trial in records.trials:
        yield _line("trial", codec.to_plain(trial))
    for rejection in records.rejections:
        yield _line("rejection", codec.to_plain(rejection))
    for best in records.confirmed:
        yield _line("confirmed", codec.to_plain(best))
    for name in SINGLE:
        if (value := getattr(records, name)) is not None:
            yield _line(name, codec.to_plain(value))


def _line(kind: str, value: Any) -> dict[str, Any]:
    return {kind: _plain(value)}


def _plain(value: Any, field: str = "") -> Any:
    """Return a field's value without paths.

    The numbers that JSON has no word for as strings, which floats are read from.
    """
    if isinstance(value, dict):
        return {name: _plain(entry, name) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, field) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if not isinstance(value, str):
        return value
    return _portable_word(value) if field == COMMAND else _portable_text(value) if field in IN_WORDS else value


def _portable_word(word: str) -> str:
    """Return a word of a command, in which paths need no quotes around their spaces."""
    return "".join(_portable_text(_FOLDERS.sub("", part)) for part in re.split("([=,:])(?=~?/)", word))


def _portable_text(text: str) -> str:
    return _PATH.sub("", _QUOTED.sub(lambda it: f"{it['quote']}{_FOLDERS.sub('', it['path'])}{it['quote']}", text))
