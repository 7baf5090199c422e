"""Where files of a study lie in its folder, and what names them wherever that folder is now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autorecompute.result import Best, Result

PAGE = "report.html"
"""The page that ``autorecompute report`` makes."""

PLANS_PLACE = "best/plans.json"
"""The file that the variables of a config may name, and how an archive names it."""


def best_at(best: Best, place: str) -> Best:
    """The config with another place for the file that its variables name."""
    environment = {name: place if _is_place(value) else value for name, value in best.environment.items()}
    return replace(best, environment=environment)


def result_at(result: Result, place: str) -> Result:
    """The answer with another place for that file."""
    return result if result.best is None else replace(result, best=best_at(result.best, place))


def _is_place(value: str) -> bool:
    return value == PLANS_PLACE or value.startswith("/")
