"""The JSON Schemas (2020-12) of all that is printed or exported as JSON, made of the records when they are asked for.

``python -m autorecompute.schemas tune`` prints one.
"""

from __future__ import annotations

from typing import Any

from autorecompute.cli.output import Failure
from autorecompute.codec import NOT_FINITE
from autorecompute.emit.emitted import Emitted
from autorecompute.reports.answer_json import Answer, ShownStudy
from autorecompute.reports.check_report import Checked
from autorecompute.reports.installation import Installation
from autorecompute.reports.listing import StudyList
from autorecompute.reports.plans_json import Plans
from autorecompute.schemas.definitions import Definitions, Schema
from autorecompute.studies.archive import LINES

__all__ = ["ARCHIVE", "DOCUMENTS", "NAMES", "schema_of"]

DOCUMENTS: dict[str, tuple[type[Any], str]] = {
    "tune": (Answer, "What tune --json prints: the answer of a study."),
    "show": (ShownStudy, "What show STUDY --json prints: a study with all its trials."),
    "studies": (StudyList, "What show and studies list print with --json: the studies."),
    "check": (Checked, "What check --json prints: whether a stored config still holds here."),
    "plans": (Plans, "What plans --json prints: what could be recomputed."),
    "emit": (Emitted, "What emit --format json prints: what to train with."),
    "doctor": (Installation, "What doctor --json prints: what is installed."),
    "failure": (Failure, "What every verb prints with --json where it has no answer: why."),
}
"""The record that each verb prints, or all of them in place of theirs, and what it is."""

ARCHIVE = "study_archive"
NAMES = (*DOCUMENTS, ARCHIVE)

DRAFT = "https://json-schema.org/draft/2020-12/schema"
NULL_WHERE_NOT_FINITE: Schema = {"type": ["number", "null"]}
TEXT_WHERE_NOT_FINITE: Schema = {"anyOf": [{"type": "number"}, {"enum": sorted(NOT_FINITE)}]}


def schema_of(name: str) -> Schema:
    """Return a published schema.

    Args:
        name: One of ``NAMES``: a verb, or ``study_archive`` for a line of what ``studies export`` writes.

    Raises:
        KeyError: there is none of this name.
    """
    head = {"$schema": DRAFT, "$id": f"urn:autorecompute:schema:{name}", "title": f"autorecompute {name}"}
    if name == ARCHIVE:
        return {**head, **_archive()}
    record, description = DOCUMENTS[name]
    definitions = Definitions(NULL_WHERE_NOT_FINITE)
    return {
        **head,
        "$comment": "Later versions may add properties. What is listed stays, and an unmeasured number is null.",
        "description": description,
        **definitions.object_of(record),
        "$defs": definitions.made,
    }


def _archive() -> Schema:
    definitions = Definitions(TEXT_WHERE_NOT_FINITE, is_closed=True)
    lines = [
        {"properties": {key: definitions.of(record)}, "required": [key], "additionalProperties": False}
        for key, record in LINES.items()
    ]
    return {
        "description": "A line of what studies export writes: an object with one key, study first and end last.",
        "type": "object",
        "oneOf": lines,
        "$defs": definitions.made,
    }
