"""Where the file lies that the variables of a config may name: in the folder of its study, wherever that is now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autorecompute.result import Best, Result

PLANS_PLACE = "best/plans.json"
"""Where it lies in the folder of any study, and how an archive names it."""


def best_at(best: Best, place: str) -> Best:
    """The config with another place for the file that its variables name."""
    environment = {name: place if _is_place(value) else value for name, value in best.environment.items()}
    return replace(best, environment=environment)


def result_at(result: Result, place: str) -> Result:
    """The answer with another place for that file."""
    return result if result.best is None else replace(result, best=best_at(result.best, place))


def _is_place(value: str) -> bool:
    return value == PLANS_PLACE or value.startswith("/")
