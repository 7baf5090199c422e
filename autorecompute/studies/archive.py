"""Studies in one file, written and read.

What cannot be read raises ``UsageError``, which names the line that is wrong.
"""

from __future__ import annotations

import gzip
import re
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, NoReturn, cast

from autorecompute import codec
from autorecompute.codec import LARGEST_TEXT, MOST_VALUES, UnreadableError, count_values, parse
from autorecompute.errors import UsageError
from autorecompute.figures import Verdict, judge
from autorecompute.files import open_named, shown
from autorecompute.measurement import Trial
from autorecompute.plans import Config
from autorecompute.ranges import INLINED, PositiveCount
from autorecompute.result import Best, Rejection, Result
from autorecompute.studies.problem import SEVERAL_BATCHES, Head
from autorecompute.studies.records import FILES, StudyRecords
from autorecompute.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autorecompute.plans import Space
    from autorecompute.studies.problem import Problem


FORMAT: Final = "autorecompute study archive"
VERSION: Final = 3
GZIP_SUFFIX = ".gz"
COMMAND, UUID = "command", "uuid"  # the fields that hold the words of a command, and the number of a card
IN_WORDS = frozenset(
    ("message", "trace", "warnings", "marks", "reason", "unconfirmed", "why_not", "refusals", "no_steps")
)
"""The fields with words for people, which may name files. In all others a slash is no path's: ``*/gelu`` is a site."""

_FOLDERS = re.compile(r"\A(?!//)~?/(?:[^/]*/)*(?=[^/])")  # all of an absolute path but its last part

_QUOTED = re.compile(r"(?P<quote>[\"'`])(?P<path>~?/(?:(?!(?P=quote))[^\n])*)(?P=quote)")
"""A path in quotes, as Python and our own messages have it, which may have spaces in it."""

_PATH = re.compile(r"(?<![\w/.*)])(?!//)~?/(?:[^\s/\"'`,;:()\[\]]+/)*(?=[^\s/\"'`,;:()\[\]])")
"""All of an absolute path but its last part, among words. What comes after ``*`` or ``)`` belongs to a site."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLine:
    """First line: what the study is about, and where it comes from."""

    format: Annotated[Literal["autorecompute study archive"], "What the file is."] = FORMAT
    version: Annotated[Literal[3], "Counts up when older archives can no longer be read."] = VERSION
    digest: Annotated[str, "Sixteen hexadecimal digits, equal for equal problems."]
    head: Annotated[Head, INLINED]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastLine:
    """Last line."""

    lines: Annotated[PositiveCount, "How many lines there are, with this one."]


SEVERAL: dict[str, type[Any]] = {"trial": Trial, "rejection": Rejection, "confirmed": Best}
LINES: dict[str, type[Any]] = {"study": FirstLine, **SEVERAL, **FILES, "end": LastLine}
"""The record of each line, by its only key."""


def dump(records: StudyRecords) -> bytes:
    """Return the archive of a study."""
    lines: list[dict[str, Any]] = [{"study": FirstLine(digest=records.head.problem.digest, head=records.head)}]
    for kind, several in zip(SEVERAL, (records.trials, records.rejections, records.confirmed), strict=True):
        lines += ({kind: record} for record in several)
    lines += ({kind: record} for kind in FILES if (record := getattr(records, kind)) is not None)
    lines.append({"end": LastLine(lines=len(lines) + 1)})
    return "".join(f"{codec.write(_portable(codec.to_plain(line)))}\n" for line in lines).encode()


def _portable(value: Any, field: str = "") -> Any:
    """Return a field's value without paths and the numbers of cards."""
    if isinstance(value, dict):
        return {name: _portable(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [_portable(entry, field) for entry in value]
    if not isinstance(value, str):
        return value
    if field == COMMAND:
        # Paths need no quotes around their spaces there.
        return "".join(_portable_text(_FOLDERS.sub("", part)) for part in re.split("([=,:])(?=~?/)", value))
    return "" if field == UUID else _portable_text(value) if field in IN_WORDS else value


def _portable_text(text: str) -> str:
    return _PATH.sub("", _QUOTED.sub(lambda it: f"{it['quote']}{_FOLDERS.sub('', it['path'])}{it['quote']}", text))


def _require_own_choices(config: Config, space: Space) -> None:
    if space.is_mix(config) or config in space.opaque_presets.values():
        return
    if strangers := [text for text in config.texts if not space.is_mix(Config.parse([text]))]:
        raise UnreadableError(f"holds the choice '{strangers[0][:80]}', which the study's model does not offer")


def _require_confirmed(result: Result, confirmed: list[Best], head: Head) -> None:
    if result.best is None or not result.best.confirmed or head.problem.batch == SEVERAL_BATCHES:
        # What confirmed the answer of several batches is in the studies of each.
        return
    _require_own_choices(result.best.config, head.sizes.space)
    # A knob that was kept may have left some of the winner's plans without a node.
    if not result.best.knobs and result.best.config not in {best.config for best in confirmed}:
        raise UnreadableError("holds a config as confirmed that no line before it confirms")


def with_own_verdict(result: Result, problem: Problem) -> Result:
    """Return the answer with the verdict that its comparison bears; that of several batches stays."""
    if result.best is None or result.best.config.is_none or problem.batch == SEVERAL_BATCHES:
        return result
    if result.comparison is None and result.verdict is Verdict.RECOMPUTE_PAYS:
        return result  # no smaller batch fits: there was nothing to compare
    return replace(result, verdict=judge(result.comparison))


STANDARD_INPUT = "-"
GZIP_MAGIC = b"\x1f\x8b"
LARGEST_ARCHIVE = 64 * MIB
MOST_LINES = 2_500  # a study of forty trials takes one or two MiB and a hundred lines; far more is a mistake or malice

MOST_PARAMETERS = 100_000
"""Trials times plans: each is a row in the database of the imported study, and takes about half a millisecond."""


def read_archive(file: Path) -> StudyRecords:
    """Return the study in an archive, compressed or not."""
    found: dict[str, Any] = {kind: [] for kind in SEVERAL}
    with _open(file) as stream:
        number = 0
        for number, line in enumerate(_lines(stream, file), start=1):
            with _naming(file, number):
                _take(line, number, found)
        if "end" not in found:
            _refuse(file, number + 1, "is missing: the archive was cut short")
    return StudyRecords(
        head=found["study"],
        trials=tuple(found["trial"]),
        rejections=tuple(found["rejection"]),
        confirmed=tuple(found["confirmed"]),
        **{kind: found[kind] for kind in FILES if kind in found},
    )


def read_archive_head(file: Path) -> Head:
    """Read the head of the study in an archive, from its first line alone."""
    found: dict[str, Any] = {}
    with _open(file) as stream, _naming(file, 1):
        _take(next(_lines(stream, file), b""), 1, found)
    return cast("Head", found["study"])


def _take(line: bytes, number: int, found: dict[str, Any]) -> None:
    """Add what a line holds to what was found before it."""
    plain = parse(line)
    if not isinstance(plain, dict) or len(plain) != 1:
        raise UnreadableError("is no object with one key")
    ((kind, value),) = plain.items()
    if (number == 1) != (kind == "study"):
        raise UnreadableError("is not the first line of a study's archive" if number == 1 else "begins another study")
    if "end" in found:
        raise UnreadableError("follows the end")
    if kind not in LINES:
        raise UnreadableError(f"holds '{kind[:40]}', which this autorecompute does not know")
    if kind not in SEVERAL and kind in found:
        raise UnreadableError(f"holds a second {kind}")
    if kind == "study":
        found[kind] = _read_head(value)
    elif kind == "end":
        if not isinstance(value, dict) or value.get("lines") != number:
            raise UnreadableError("is not the end that was written: lines are missing or were added")
        found[kind] = value
    else:
        _take_record(kind, codec.from_plain(value, LINES[kind]), found)


def _take_record(kind: str, record: Any, found: dict[str, Any]) -> None:
    head: Head = found["study"]
    if kind in SEVERAL:
        _require_own_choices(record.config, head.sizes.space)
        if isinstance(record, Trial):
            _require_next(record, found["trial"], head.problem)
        found[kind].append(record)
    elif isinstance(record, Result):
        _require_confirmed(record, found["confirmed"], head)
        found[kind] = with_own_verdict(record, head.problem)
    else:
        found[kind] = record


def _require_next(trial: Trial, before: list[Trial], problem: Problem) -> None:
    # Of a study that several workers shared some numbers belong to no trial.
    if trial.number < (least := before[-1].number + 1 if before else 0):
        raise UnreadableError(f"holds trial {trial.number} where {least} or more comes next")
    if (len(before) + 1) * len(problem.plans) > MOST_PARAMETERS:
        raise UnreadableError(f"brings the archive to more than {MOST_PARAMETERS} switches of plans in its trials")


def _read_head(value: Any) -> Head:
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UnreadableError("is not the first line of a study's archive")
    version = value.get("version")
    if type(version) is not int or version != VERSION:
        raise UnreadableError(
            f"is of version {version} of the format, by autorecompute {value.get('autorecompute')}, and this one reads "
            f"{VERSION}: import it with that version, or tune again"
        )
    head = codec.from_plain(
        {name: part for name, part in value.items() if name not in {"format", "version", "digest"}}, Head
    )
    if {plan.id for plan in head.sizes.space.plans} != set(head.problem.plans):
        raise UnreadableError("holds other plans than its problem has")
    if value.get("digest") != head.problem.digest:
        raise UnreadableError("holds a problem that its digest does not belong to")
    return head


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
        if not line.endswith(b"\n") or not line.strip():
            _refuse(file, number, "is blank" if line.endswith(b"\n") else "is cut off")
        yield line
    _refuse(file, MOST_LINES + 1, "is one too many")


@contextmanager
def _open(file: Path) -> Iterator[BinaryIO]:
    try:
        is_piped = str(file) == STANDARD_INPUT
        advice = "Give the path of an archive, or - and pipe it in."
        with open(0, "rb", closefd=False) if is_piped else open_named(file, advice) as plain:
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


@contextmanager
def _naming(file: Path, number: int) -> Iterator[None]:
    try:
        yield
    except UnreadableError as error:
        _refuse(file, number, str(error))


def _refuse(file: Path, number: int, why: str) -> NoReturn:
    raise UsageError(f"{shown(file)} is no archive that can be read: line {number} {why}. Nothing was imported.")
