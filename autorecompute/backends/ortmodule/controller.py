"""ORTModule as the controller sees it. Imports neither torch nor ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.interface import ImportHook
from autorecompute.backends.ortmodule.environment import KNOBS, memory_model, offer, render
from autorecompute.backends.ortmodule.environment import MEMORY_VARIABLES as VARIABLES
from autorecompute.backends.ortmodule.knobs import HINTS, plans_under, why_not
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.measurement import Detection
    from autorecompute.plans import Config

__all__ = [
    "DIAGNOSIS",
    "HINTS",
    "KNOBS",
    "LOG_VARIABLE",
    "NAME",
    "PROFILES",
    "REPAIR",
    "TRIAL_VARIABLES",
    "USED_BY",
    "VARIABLES",
    "WRAPS",
    "import_hooks",
    "memory_model",
    "memory_of",
    "offer",
    "plans_under",
    "render",
    "rough_memory_of",
    "script",
    "takes_turns",
    "usage_notes",
    "why_not",
]

NAME = "ortmodule"
WRAPS = True
PROFILES = True
CARDS: tuple[str, ...] = ()
USED_BY = "onnxruntime.training.ortmodule"
TRIAL_VARIABLES = {"ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"}
"""A model that ORT cannot take must fail rather than train in plain PyTorch."""

LOG_VARIABLE = "ORTMODULE_LOG_LEVEL"
DIAGNOSIS = "autorecompute.backends.ortmodule.diagnose"
REPAIR = "autorecompute.backends.ortmodule.extensions"

ADAPT = ImportHook(
    module=USED_BY,
    comes_first=True,
    function="autorecompute.backends.ortmodule.adapter:adapt",
    missed="ORTModule goes on without being adapted to this PyTorch",
)
WRAP = ImportHook(
    module="torch",
    comes_first=False,
    function="autorecompute.backends.ortmodule.wrapping:install",
    missed="the model trains in plain PyTorch, as nothing can wrap it here",
)


def memory_of(detection: Detection) -> None:
    """Nothing: steps have to be profiled."""
    del detection


def rough_memory_of(detection: Detection) -> None:
    """Nothing: steps have to be profiled."""
    del detection


def takes_turns(detection: Detection) -> bool:
    """Never: every swap makes the sessions anew."""
    del detection
    return False


def script(config: Config, versions: Mapping[str, str]) -> str:
    """None.

    Raises:
        UsageError: always.
    """
    del config, versions
    raise UsageError("ORTModule reads variables, and no Python code can take their place. Use --format shell.")


def import_hooks(*, wrap: bool) -> Sequence[ImportHook]:
    """ORTModule is adapted to the installed PyTorch, and where a study was tuned so, the model is wrapped."""
    return (ADAPT, WRAP) if wrap else (ADAPT,)


def usage_notes(*, study: str, wrap: bool) -> Mapping[str, str]:
    """What a script needs that is not started by ``run``."""
    if wrap:
        return {
            "the script has no ORTModule": (
                f"start it with 'autorecompute run {study} -- COMMAND', nothing else wraps its model"
            )
        }
    return {"without 'autorecompute run'": "the script has to import autorecompute.compat before ORTModule"}
