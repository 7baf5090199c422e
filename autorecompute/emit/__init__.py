"""A study's answer as variables to train with, one module to a format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autorecompute.emit import as_json, dotenv, python, shell

if TYPE_CHECKING:
    from collections.abc import Callable

    from autorecompute.backends.interface import Emission
    from autorecompute.result import Result

__all__ = ["RENDERERS"]

RENDERERS: dict[str, Callable[[Result, Emission], str]] = {
    "shell": shell.render,
    "dotenv": dotenv.render,
    "json": as_json.render,
    "python": python.render,
}
"""By the name of the format."""
