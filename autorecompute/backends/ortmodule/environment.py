"""The variables that make an unmodified ORTModule script train with a config, for each version of ONNX Runtime.

Imports neither torch nor ONNX Runtime: the controller, which has neither, asks for them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from autorecompute.errors import SetupError, UsageError
from autorecompute.plans import Config, Level

if TYPE_CHECKING:
    from pathlib import Path

LEVEL_VARIABLE = "ORTMODULE_MEMORY_OPT_LEVEL"
CONFIG_VARIABLE = "ORTMODULE_MEMORY_OPT_CONFIG"
MEMORY_VARIABLES = (LEVEL_VARIABLE, CONFIG_VARIABLE)
"""What decides about recompute in ORTModule; one of them left over from elsewhere changes what is trained."""

OLDEST_VERSION, NEWEST_VERSION = (1, 17), (1, 19)
FIRST_VERSION_WITH_COMPROMISE_LEVEL = (1, 18)
FIRST_VERSION_WITH_FILE = (1, 19)

LONGEST_COMMA_STRING = 2048
"""Characters that a session option of ONNX Runtime holds."""


def environment_for(config: Config, *, ort_version: str, plans_file: Path) -> dict[str, str]:
    """The variables that switch the config on; none where nothing is recomputed.

    Args:
        config: What to recompute.
        ort_version: ``onnxruntime.__version__`` of the environment that trains.
        plans_file: Where the caller keeps ``plans_file_text(config)``; ONNX Runtime 1.19 is given its absolute path.

    Raises:
        SetupError: that version reads no config of this form.
        UsageError: the config cannot be written for that version.
    """
    version = _parse_version(ort_version)
    if config.is_none:
        return {}
    if config.level is not Level.CHOSEN:
        return {LEVEL_VARIABLE: _format_level(config.level, version)}
    if version >= FIRST_VERSION_WITH_FILE:
        return {CONFIG_VARIABLE: str(plans_file.absolute())}
    return {CONFIG_VARIABLE: _join_rows(config)}


def plans_file_text(config: Config) -> str:
    """What ONNX Runtime 1.19 reads from the file: a JSON array with one row to a line."""
    return json.dumps(config.row_texts, indent=2) + "\n"


def _parse_version(text: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", text)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if not OLDEST_VERSION <= version <= NEWEST_VERSION:
        raise SetupError(
            f"ONNX Runtime {text or '(unknown)'} takes no recompute plans of this form, only 1.17 to 1.19 do. "
            "Install onnxruntime-training 1.19.2."
        )
    return version


def _format_level(level: Level, version: tuple[int, int]) -> str:
    if level is Level.LAYERWISE_WITH_COMPROMISE and version < FIRST_VERSION_WITH_COMPROMISE_LEVEL:
        raise UsageError("ONNX Runtime 1.17 has no recompute level 2. Use level 1, or ONNX Runtime 1.18 or 1.19.")
    return str(int(level))


def _join_rows(config: Config) -> str:
    joined = ",".join(config.row_texts)
    if len(joined) > LONGEST_COMMA_STRING:
        raise UsageError(
            f"These plans take {len(joined)} characters, and ONNX Runtime 1.17 and 1.18 read {LONGEST_COMMA_STRING} "
            "at most. Use fewer plans, or ONNX Runtime 1.19, which reads them from a file."
        )
    return joined
