"""The file that the variables of a config may point to."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from autorecompute.backends import emission_of
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from autorecompute.result import Best, Result


def plans_file_of(best: Best) -> Path | None:
    """The file that the config's variables point to; ``None`` where they hold all by themselves."""
    paths = [Path(value) for value in best.environment.values() if Path(value).is_absolute()]
    return paths[0] if paths else None


def require_plans_file(best: Best, result: Result) -> None:
    """Checks that the file which the variables point to, if any, still holds the config.

    ONNX Runtime ignores plans that it does not know: a changed file would train with something nobody measured.

    Raises:
        UsageError: the file is gone, or holds something else.
    """
    file = plans_file_of(best)
    if file is None or _read(file) == emission_of(result.versions["backend"]).plans_file_text(best.config):
        return
    found = "no longer holds the plans that were measured" if file.exists() else "is gone"
    study = shlex.quote(result.study)
    raise UsageError(
        f"The plans file '{file}' {found}. Have it written anew: autorecompute studies export {study} -o again.jsonl; "
        f"autorecompute studies import again.jsonl --study {study} --force"
    )


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
