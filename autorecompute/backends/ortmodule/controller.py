"""ORTModule as the controller sees it. Imports neither torch nor ONNX Runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.backends.interface import ImportHook
from autorecompute.backends.ortmodule.environment import KNOBS, memory_model, offer, render
from autorecompute.backends.ortmodule.environment import MEMORY_VARIABLES as VARIABLES
from autorecompute.backends.ortmodule.hints import HINTS
from autorecompute.backends.ortmodule.knobs import plans_under, why_not
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autorecompute.plans import Config
    from autorecompute.training_job import Detection

__all__ = [
    "CACHE_VARIABLES",
    "DIAGNOSIS",
    "HINTS",
    "KNOBS",
    "LOG_VARIABLE",
    "NAME",
    "PROFILES",
    "READ_BY",
    "REPAIR",
    "TRIAL_VARIABLES",
    "USED_BY",
    "VARIABLES",
    "import_hooks",
    "memory_model",
    "memory_of",
    "needs_of",
    "offer",
    "peaks_of",
    "planned",
    "plans_under",
    "render",
    "rough_memory_of",
    "script",
    "takes_turns",
    "unmeasured",
    "why_not",
    "why_not_while_training",
]

NAME = "ortmodule"
PROFILES = True
READ_BY = "a script that imports autorecompute.compat before ORTModule"
CARDS: tuple[str, ...] = ()
USED_BY = "onnxruntime.training.ortmodule"
TRIAL_VARIABLES = {"ORTMODULE_FALLBACK_POLICY": "FALLBACK_DISABLE"}
"""A model that ORT cannot take must fail rather than train in plain PyTorch."""

CACHE_VARIABLES: tuple[str, ...] = ()
LOG_VARIABLE = "ORTMODULE_LOG_LEVEL"
DIAGNOSIS = "autorecompute.backends.ortmodule.diagnose"
REPAIR = "autorecompute.backends.ortmodule.extensions"

ADAPT = ImportHook(
    module=USED_BY,
    comes_first=True,
    function="autorecompute.backends.ortmodule.adapter:adapt",
    missed="ORTModule goes on without being adapted to this PyTorch",
)


def memory_of(detection: Detection) -> None:
    """Return nothing: steps have to be profiled."""
    del detection


def peaks_of(detection: Detection) -> None:
    """Return nothing: steps have to be profiled."""
    del detection


def rough_memory_of(detection: Detection) -> None:
    """Return nothing: steps have to be profiled."""
    del detection


def takes_turns(detection: Detection) -> bool:
    """Never: every swap makes the sessions anew."""
    del detection
    return False


def needs_of(detection: Detection) -> Callable[[Config], frozenset[str]]:
    """Tell nothing that is made once: every swap makes the sessions anew, whatever the config."""
    del detection
    return lambda _config: frozenset()


def why_not_while_training(detection: Detection) -> str:
    """Return a training follows plain PyTorch alone, and never comes here."""
    del detection
    return "only plain PyTorch is tuned while it trains: measure with 'autorecompute tune SCRIPT'"


def script(config: Config, versions: Mapping[str, str]) -> str:
    """None.

    Raises:
        UsageError: always.
    """
    del config, versions
    raise UsageError("ORTModule reads variables, and no Python code can take their place. Use --format shell.")


def unmeasured(config: Config, versions: Mapping[str, str]) -> str:
    """Return nothing: what is planned is in variables, and nothing marks those.

    Raises:
        UsageError: always.
    """
    del config, versions
    raise UsageError("ORTModule reads variables, which cannot say that nobody measured them. Tune the script.")


def planned(environment: Mapping[str, str]) -> None:
    """Return nothing: variables do not say that nobody measured them."""
    del environment


def import_hooks() -> Sequence[ImportHook]:
    """ORTModule is adapted to the installed PyTorch."""
    return (ADAPT,)
