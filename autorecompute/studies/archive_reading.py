"""Reads an archive from anywhere: every line is checked before anything is believed, and a wrong one is named."""

from __future__ import annotations

import gzip
import json
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from autorecompute import codec
from autorecompute.errors import AutorecomputeError, UsageError
from autorecompute.measurement import Trial
from autorecompute.paths import open_named, shown
from autorecompute.plans import Row
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.analysis import Analysis
from autorecompute.studies.archive import FORMAT, VERSION
from autorecompute.studies.batches import BatchRecord
from autorecompute.studies.plausible import (
    WrongLineError,
    require_confirmed,
    require_own_rows,
    require_plain_step,
    require_plausible,
)
from autorecompute.studies.records import Head, RaceRecord, StudyRecords
from autorecompute.units import MIB

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

STANDARD_INPUT = "-"
GZIP_MAGIC = b"\x1f\x8b"
LONGEST_LINE = 64 * MIB
LARGEST_ARCHIVE = 512 * MIB
"""A study of forty trials takes one or two MiB; far more is a mistake or malice, and would fill the memory."""


def read_archive(file: Path) -> StudyRecords:
    """The study in an archive, compressed or not.

    Raises:
        UsageError: the file cannot be opened, or a line of it is wrong, which the message names.
    """
    draft = _Draft()
    with _open(file) as stream:
        number = 0
        for number, line in enumerate(_lines(stream, file), start=1):
            with _naming(file, number):
                draft.take(_parse(line), number)
        if not draft.is_ended:
            _refuse(file, number + 1, "is missing: the archive was cut short")
    return draft.records()


def read_archive_head(file: Path) -> Head:
    """What the study in an archive is about, from its first line alone.

    Raises:
        UsageError: the file cannot be opened, or its first line is wrong.
    """
    draft = _Draft()
    with _open(file) as stream, _naming(file, 1):
        draft.take(_parse(next(_lines(stream, file), b"")), 1)
    return draft.head


@dataclass
class _Draft:
    """The lines that were read so far."""

    found: dict[str, Any] = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    rejections: list[Rejection] = field(default_factory=list)
    confirmed: list[Best] = field(default_factory=list)
    is_ended: bool = False

    @property
    def head(self) -> Head:
        return cast("Head", self.found["study"])

    def take(self, line: dict[str, Any], number: int) -> None:
        """Adds what a line holds.

        Raises:
            ValueError: it holds something else.
        """
        kind, value = _entry(line)
        if (number == 1) != (kind == "study"):
            raise WrongLineError(
                "is not the first line of a study's archive" if number == 1 else "begins another study"
            )
        if self.is_ended:
            raise WrongLineError("follows the end")
        if kind == "end":
            _require_count(value, number)
            self.is_ended = True
        elif kind in _SINGLE:
            if kind in self.found:
                raise WrongLineError(f"holds a second {kind}")
            self.found[kind] = self._read_single(kind, value)
        else:
            self._append(kind, value)

    def _read_single(self, kind: str, value: Any) -> Any:
        record = _read_head(value) if kind == "study" else codec.from_plain(value, _SINGLE[kind])
        require_plausible(record)
        if isinstance(record, Analysis):
            require_plain_step(record)
        if isinstance(record, Result):
            require_confirmed(record, self.confirmed, self.head.problem)
        # The study keeps these two as its files have them.
        return codec.to_plain(record) if isinstance(record, RaceRecord | Analysis) else record

    def _append(self, kind: str, value: Any) -> None:
        if kind not in _SEVERAL:
            raise WrongLineError(f"holds '{kind[:40]}', which this autorecompute does not know")
        record = codec.from_plain(value, _SEVERAL[kind])
        require_plausible(record)
        self._keep(record)

    def _keep(self, record: Trial | Rejection | Best) -> None:
        require_own_rows(record.config, self.head.problem)
        if isinstance(record, Best):
            self.confirmed.append(record)
            return
        if isinstance(record, Rejection):
            self.rejections.append(record)
            return
        # Of a study that several workers shared some numbers belong to no trial.
        if record.number < (least := self.trials[-1].number + 1 if self.trials else 0):
            raise WrongLineError(f"holds trial {record.number} where {least} or more comes next")
        self.trials.append(record)

    def records(self) -> StudyRecords:
        found = {name: value for name, value in self.found.items() if name != "study"}
        return StudyRecords(
            head=self.head,
            trials=tuple(self.trials),
            rejections=tuple(self.rejections),
            confirmed=tuple(self.confirmed),
            **found,
        )


def _read_head(value: Any) -> Head:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise WrongLineError("is not the first line of a study's archive")
    version = value.get("version")
    if type(version) is not int or not 0 < version <= VERSION:
        raise WrongLineError(
            f"is of version {version} of the format, by autorecompute {value.get('autorecompute')}, and this one reads "
            f"{VERSION}: install a newer autorecompute"
        )
    head = codec.from_plain(value, Head)
    for key in head.problem.plans:
        for row in key.split(","):
            Row.parse(row)
    if value.get("digest") != head.problem.digest:
        raise WrongLineError("holds a problem that its digest does not belong to")
    return head


_SINGLE: dict[str, type[Any]] = {
    "study": Head,
    "race": RaceRecord,
    "batches": BatchRecord,
    "analysis": Analysis,
    "result": Result,
}
_SEVERAL: dict[str, type[Any]] = {"trial": Trial, "rejection": Rejection, "confirmed": Best}


def _entry(line: dict[str, Any]) -> tuple[str, Any]:
    if not isinstance(line, dict) or len(line) != 1:
        raise WrongLineError("is no object with one key")
    return next(iter(line.items()))


def _require_count(value: Any, number: int) -> None:
    if not isinstance(value, dict) or value.get("lines") != number:
        raise WrongLineError("is not the end that was written: lines are missing or were added")


def _parse(line: bytes) -> dict[str, Any]:
    if not line.endswith(b"\n"):
        raise WrongLineError("is cut off")

    def refuse(word: str) -> NoReturn:
        raise WrongLineError(f"holds {word}, which is no JSON")

    if not line.strip():
        raise WrongLineError("is blank")
    try:
        return cast("dict[str, Any]", json.loads(line, parse_constant=refuse))
    except json.JSONDecodeError as error:
        raise WrongLineError(f"is no JSON from column {error.colno} on") from error


def _lines(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    total, number = 0, 0
    while True:
        number += 1
        try:
            line = stream.readline(LONGEST_LINE + 1)
        except (EOFError, OSError, zlib.error) as error:
            _refuse(file, number, f"cannot be read: {error}")
        if not line:
            return
        total += len(line)
        if len(line) > LONGEST_LINE:
            _refuse(file, number, f"is longer than {LONGEST_LINE // MIB} MiB")
        if total > LARGEST_ARCHIVE:
            _refuse(file, number, f"lies beyond {LARGEST_ARCHIVE // MIB} MiB")
        yield line


@contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    try:
        with _open_plain(file) as plain:
            # What is piped in cannot be gone back in.
            if not plain.peek(len(GZIP_MAGIC)).startswith(GZIP_MAGIC):
                yield plain
                return
            with gzip.GzipFile(fileobj=plain) as unpacked:
                yield cast("BinaryIO", unpacked)
    except OSError as error:
        raise UsageError(
            f"{shown(file)} cannot be read: {error.strerror or error}. Give the path of an archive."
        ) from error


def _open_plain(file: Path) -> io.BufferedReader:
    if str(file) == STANDARD_INPUT:
        return open(0, "rb", closefd=False)
    return open_named(file, "Give the path of an archive, or - and pipe it in.")


@contextmanager
def _naming(file: Path, number: int) -> Iterator[None]:
    try:
        yield
    except WrongLineError as error:
        _refuse(file, number, str(error))
    except UnicodeDecodeError:
        _refuse(file, number, "is no text")
    except RecursionError:
        _refuse(file, number, "is nested too deeply")
    except (AutorecomputeError, ValueError, KeyError, TypeError, OverflowError, AttributeError) as error:
        _refuse(file, number, f"does not hold what it should ({error or type(error).__name__})")


def _refuse(file: Path, number: int, why: str) -> NoReturn:
    raise UsageError(f"{shown(file)} is no archive that can be read: line {number} {why}. Nothing was imported.")
