"""Our dataclasses as JSON and back, for the channel to the worker, the study's files and its database.

What is read here is held to the types of the records' fields: numbers to their ranges (:mod:`autorecompute.ranges`),
texts to what can be printed and stored. What a record as a whole must be, its ``__post_init__`` checks. So whoever
has a record need not ask where it came from.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

from autorecompute import documents, jsontext
from autorecompute.jsontext import UnreadableError
from autorecompute.plans import Choice, Config
from autorecompute.units import printable

if TYPE_CHECKING:
    from cattrs import Converter

T = TypeVar("T")

LONGEST_NAME = 80
"""Letters of a name that stands in a file, and in a message about it."""

_UNKNOWN = "unknown field "


def to_plain(value: object) -> Any:
    """Return the value as dicts, lists, strings and numbers."""
    return _converter().unstructure(value)


def from_plain(plain: Any, kind: type[T]) -> T:
    """Return the value of that kind which ``to_plain`` made ``plain`` of.

    Raises:
        UnreadableError: the plain value does not describe one.
    """
    from cattrs import BaseValidationError

    try:
        return _converter().structure(plain, kind)
    except (BaseValidationError, ValueError) as error:
        raise UnreadableError(_describe(error, getattr(kind, "__name__", str(kind)))) from error


def encode(value: object) -> bytes:
    """Return the value as JSON."""
    return jsontext.write(to_plain(value)).encode()


def decode(text: bytes | str, kind: type[T]) -> T:
    """Return the value of that kind which ``encode`` wrote.

    Raises:
        UnreadableError: the text does not describe one.
    """
    return from_plain(jsontext.parse(text.encode() if isinstance(text, str) else text), kind)


def dumps(document: object) -> str:
    """Return the document as verbs print it, for people and programs; what is no finite number is null."""
    return jsontext.write(to_plain(document), indent=2, keeps_not_finite=False)


def _describe(error: Exception, kind: str) -> str:
    """Return which record is not described, and which of its fields, as far as that can be told."""
    from cattrs import transform_error

    what, _, place = transform_error(error, format_exception=_say)[0].rpartition(" @ $")
    if what.startswith(_UNKNOWN):
        place, what = f"{place}.{what.removeprefix(_UNKNOWN)}", "is unknown"
    return f"describes no {kind}: " + (f"'{place.removeprefix('.')}' {what}" if place else f"it {what}")


def _say(error: BaseException, _: type | None) -> str:
    from cattrs import ForbiddenExtraKeysError

    if isinstance(error, ForbiddenExtraKeysError):
        return f"{_UNKNOWN}{printable(min(error.extra_fields)[:LONGEST_NAME], '')}"
    return "is missing" if isinstance(error, KeyError) else str(error) or "is wrong"


@functools.cache
def _converter() -> Converter:
    from cattrs.preconf.json import make_converter

    from autorecompute import structuring

    converter = make_converter()
    converter.register_unstructure_hook(Choice, str)
    converter.register_unstructure_hook(Config, lambda config: config.texts)
    documents.register(converter)
    structuring.register(converter)
    return converter
