"""Our dataclasses as JSON and back, for the channel to the worker, the study's files and its database."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, TypeVar

from autorecompute.plans import Choice, Config

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")

EXTRA = "extra fields found ("
"""How cattrs begins to tell of fields that a record does not have."""


class UnreadableError(ValueError):
    """A plain value does not describe what it should."""


def to_plain(value: object) -> Any:
    """The value as dicts, lists, strings and numbers."""
    return _converter().unstructure(value)


def from_plain(plain: Any, kind: type[T]) -> T:
    """The value of that kind which ``to_plain`` made ``plain`` of.

    Raises:
        UnreadableError: the plain value does not describe one.
    """
    from cattrs import BaseValidationError

    try:
        return _converter().structure(plain, kind)
    except (BaseValidationError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise UnreadableError(_describe(error, getattr(kind, "__name__", str(kind)))) from error


def _describe(error: Exception, kind: str) -> str:
    """Which record is not described, and which of its fields, as far as that can be told."""
    from cattrs import transform_error

    what, _, place = transform_error(error)[0].partition(" @ $")
    if what.startswith(EXTRA):
        names = f"{place}.".removeprefix(".") + what.removeprefix(EXTRA).removesuffix(")")
        return f"no {kind} is described there: '{names}' is unknown"
    wrong = "is missing" if what.startswith("required field missing") else "is wrong"
    return f"no {kind} is described there" + (f": '{place.removeprefix('.')}' {wrong}" if place else "")


def encode(value: object) -> bytes:
    """The value as JSON."""
    return json.dumps(to_plain(value)).encode()


def decode(text: bytes | str, kind: type[T]) -> T:
    """The value of that kind which ``encode`` wrote."""
    return from_plain(json.loads(text), kind)


@functools.cache
def _converter() -> Converter:
    from cattrs.preconf.json import make_converter

    # What a record does not know would be lost, or believed by a later version.
    converter = make_converter(forbid_extra_keys=True)
    converter.register_unstructure_hook(Choice, str)
    converter.register_structure_hook(Choice, lambda text, _: Choice.parse(text))
    converter.register_unstructure_hook(Config, lambda config: config.texts)
    converter.register_structure_hook(Config, lambda plain, _: Config.parse(plain))
    return converter
