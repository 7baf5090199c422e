"""Records that are printed: what they can say that a stored one cannot."""

import json
import math
from dataclasses import dataclass
from typing import Annotated

from autorecompute import codec
from autorecompute.documents import ABSENT, INLINED, Absent, Document
from autorecompute.schemas.definitions import Definitions


@dataclass(frozen=True)
class Stored:
    """What is kept.

    Attributes:
        name: Its name.
        step_seconds: How long it took.
    """

    name: str
    step_seconds: float


@dataclass(frozen=True)
class Printed(Document):
    """What is told.

    Attributes:
        stored: What is kept.
        name: Other words for it.
        with_: Whether it was with something.
        asked: What was asked for; ``None`` where nothing is known.
    """

    stored: Annotated[Stored, INLINED]
    name: tuple[str, ...]
    with_: bool
    asked: str | Absent | None = ABSENT


DOCUMENT = Printed(stored=Stored("a", math.nan), name=("b", "c"), with_=True)


def test_a_document_has_the_keys_of_what_it_takes_in():
    """A record within stands for its own keys, a later field replaces one of them, and what is absent has no key."""
    assert json.loads(codec.dumps(DOCUMENT)) == {"name": ["b", "c"], "step_seconds": None, "with": True}
    asked = Printed(stored=Stored("a", 1.0), name=(), with_=False, asked=None)
    assert json.loads(codec.dumps(asked))["asked"] is None


def test_a_schema_says_the_same():
    """Each key has its own words, its unit and its type; what may be absent is not required."""
    schema = Definitions({"type": ["number", "null"]}).object_of(Printed)
    assert list(schema["properties"]) == ["name", "step_seconds", "with", "asked"]
    assert schema["required"] == ["name", "step_seconds", "with"]
    assert schema["properties"]["name"] == {
        "type": "array",
        "items": {"type": "string"},
        "description": "Other words for it.",
    }
    assert schema["properties"]["step_seconds"]["description"] == "How long it took. In seconds."
    assert schema["properties"]["asked"]["type"] == ["string", "null"]
