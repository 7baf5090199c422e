"""A study as one portable file: JSON lines, each an object with one key that tells what it holds.

The first line is ``study``, the last one ``end``; ``schemas/study_archive.schema.json`` has them all. Paths are cut
down to names of files, and nothing of the machine is kept but what figures depend on. The same study gives the same
bytes.
"""

from __future__ import annotations

import gzip
import json
import math
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autorecompute import codec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autorecompute.studies.records import StudyRecords

FORMAT, VERSION = "autorecompute study archive", 2
GZIP_SUFFIX = ".gz"
_PATH = re.compile(r"(?<![\w/.])(?!//)~?/(?:[^\s/\"'`,;:()\[\]]+/)*(?=[^\s/\"'`,;:()\[\]])")
"""All of an absolute path but its last part, which stays."""

_WITH_NODE_NAMES = "analysis"
"""The nodes of an exported graph are called like absolute paths, and are none."""


def dump(records: StudyRecords) -> bytes:
    """The archive of a study."""
    lines = [json.dumps(line, allow_nan=False, separators=(",", ":")) for line in _lines(_portable(records))]
    end = json.dumps({"end": {"lines": len(lines) + 1}}, separators=(",", ":"))
    return "".join(f"{line}\n" for line in (*lines, end)).encode()


def compress(archive: bytes) -> bytes:
    """The archive as gzip has it, the same each time."""
    return gzip.compress(archive, mtime=0)


def _portable(records: StudyRecords) -> StudyRecords:
    result = records.result
    if result is not None:
        result = replace(result, device=replace(result.device, uuid=""))
    return replace(records, result=result)


def _lines(records: StudyRecords) -> Iterator[dict[str, Any]]:
    head = {"format": FORMAT, "version": VERSION, "digest": records.head.problem.digest}
    yield _line("study", {**head, **codec.to_plain(records.head)})
    for trial in records.trials:
        yield _line("trial", codec.to_plain(trial))
    for rejection in records.rejections:
        yield _line("rejection", codec.to_plain(rejection))
    for best in records.confirmed:
        yield _line("confirmed", codec.to_plain(best))
    for name in ("race", "batches", "analysis", "result"):
        if (value := getattr(records, name)) is not None:
            yield _line(name, codec.to_plain(value))


def _line(kind: str, value: Any) -> dict[str, Any]:
    return {kind: _plain(value, keeps_paths=kind == _WITH_NODE_NAMES)}


def _plain(value: Any, *, keeps_paths: bool) -> Any:
    """The value without paths; the numbers that JSON has no word for as strings, which floats are read from."""
    if isinstance(value, dict):
        return {name: _plain(entry, keeps_paths=keeps_paths) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, keeps_paths=keeps_paths) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if keeps_paths or not isinstance(value, str) else _PATH.sub("", value)
