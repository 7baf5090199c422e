"""Reads an archive from anywhere: every line is checked before anything is believed, and a wrong one is named."""

from __future__ import annotations

import gzip
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, cast

from autorecompute import codec
from autorecompute.errors import UsageError
from autorecompute.jsontext import LARGEST_TEXT, MOST_VALUES, UnreadableError, count_values, parse
from autorecompute.measurement import Trial
from autorecompute.paths import open_named, shown
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.archive import FORMAT, SEVERAL, SINGLE, VERSION
from autorecompute.studies.plausible import WrongLineError, require_confirmed, require_own_choices, with_own_verdict
from autorecompute.studies.problem import Head
from autorecompute.studies.records import StudyRecords
from autorecompute.units import MIB

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator
    from pathlib import Path

STANDARD_INPUT = "-"
GZIP_MAGIC = b"\x1f\x8b"
LARGEST_ARCHIVE = 64 * MIB
MOST_LINES = 2_500
"""A study of forty trials takes one or two MiB and a hundred lines; far more is a mistake or malice."""

MOST_PARAMETERS = 100_000
"""Trials times plans: each is a row in the database of the imported study, and takes about half a millisecond."""


def read_archive(file: Path) -> StudyRecords:
    """Return the study in an archive, compressed or not.

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
    """Return what the study in an archive is about, from its first line alone.

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
        """Add what a line holds.

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
        elif kind == "study" or kind in SINGLE:
            if kind in self.found:
                raise WrongLineError(f"holds a second {kind}")
            self.found[kind] = self._read_single(kind, value)
        else:
            self._append(kind, value)

    def _read_single(self, kind: str, value: Any) -> Any:
        record = _read_head(value) if kind == "study" else codec.from_plain(value, SINGLE[kind])
        if isinstance(record, Result):
            require_confirmed(record, self.confirmed, self.head.problem, self.head.sizes.space)
            return with_own_verdict(record, self.head.problem)
        return record

    def _append(self, kind: str, value: Any) -> None:
        if kind not in SEVERAL:
            raise WrongLineError(f"holds '{kind[:40]}', which this autorecompute does not know")
        self._keep(codec.from_plain(value, SEVERAL[kind]))

    def _keep(self, record: Trial | Rejection | Best) -> None:
        require_own_choices(record.config, self.head.sizes.space)
        if isinstance(record, Best):
            self.confirmed.append(record)
            return
        if isinstance(record, Rejection):
            self.rejections.append(record)
            return
        # Of a study that several workers shared some numbers belong to no trial.
        if record.number < (least := self.trials[-1].number + 1 if self.trials else 0):
            raise WrongLineError(f"holds trial {record.number} where {least} or more comes next")
        if (len(self.trials) + 1) * len(self.head.problem.plans) > MOST_PARAMETERS:
            raise WrongLineError(f"brings the archive to more than {MOST_PARAMETERS} switches of plans in its trials")
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
    if type(version) is not int or version != VERSION:
        raise WrongLineError(
            f"is of version {version} of the format, by autorecompute {value.get('autorecompute')}, and this one reads "
            f"{VERSION}: import it with that version, or tune again"
        )
    head = codec.from_plain({name: part for name, part in value.items() if name not in _OF_THE_LINE}, Head)
    if {plan.id for plan in head.sizes.space.plans} != set(head.problem.plans):
        raise WrongLineError("holds other plans than its problem has")
    if value.get("digest") != head.problem.digest:
        raise WrongLineError("holds a problem that its digest does not belong to")
    return head


_OF_THE_LINE = {"format", "version", "digest"}
"""What the first line has beside what the study is about."""


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
    if not line.strip():
        raise WrongLineError("is blank")
    return cast("dict[str, Any]", parse(line))


def _lines(stream: BinaryIO, file: Path) -> Iterator[bytes]:
    size = values = 0
    for number in range(1, MOST_LINES + 1):
        try:
            line = stream.readline(LARGEST_TEXT + 1)
        except (EOFError, OSError, zlib.error) as error:
            _refuse(file, number, f"cannot be read: {error}")
        if not line:
            return
        size, values = size + len(line), values + count_values(line)
        if len(line) > LARGEST_TEXT:
            _refuse(file, number, f"is longer than {LARGEST_TEXT // MIB} MiB")
        if size > LARGEST_ARCHIVE:
            _refuse(file, number, f"lies beyond {LARGEST_ARCHIVE // MIB} MiB")
        if values > MOST_VALUES:
            _refuse(file, number, f"brings the archive to more than {MOST_VALUES} values")
        yield line
    _refuse(file, MOST_LINES + 1, "is one too many")


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
    except (WrongLineError, UnreadableError) as error:
        _refuse(file, number, str(error))


def _refuse(file: Path, number: int, why: str) -> NoReturn:
    raise UsageError(f"{shown(file)} is no archive that can be read: line {number} {why}. Nothing was imported.")
