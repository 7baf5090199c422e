"""What is printed of stored studies: one with all its trials, their list, two side by side, a check of one."""

from __future__ import annotations

from autorecompute.measurement import Trial
from autorecompute.result import Verdict
from autorecompute.studies import Problem, Sizes
from autorecompute.studies.checked import CheckReport
from autorecompute.studies.identity import Difference
from schemas.answer import answer_or_null
from schemas.records import TEXT, TEXTS, WHOLE, obj, with_unit

FLAG = {"type": "boolean"}


def show(records):
    """A study with all its trials."""
    answer = answer_or_null(records)
    records.reference(Trial)
    trial = records.definitions["Trial"]
    trial["properties"] |= {
        "hash": {**TEXT, "description": "Twelve hexadecimal digits, the same for equal configs."},
        "relative_throughput": {
            "type": ["number", "null"],
            "description": "Throughput relative to the reference's of the same minutes; null without one.",
        },
        "samples_per_second": {
            "type": ["number", "null"],
            "description": with_unit("samples_per_second", "Throughput of the median step; null where none was timed."),
        },
    }
    trial["required"] = list(trial["properties"])
    _provenance(records)
    _nearest(records)
    return obj(
        "",
        {
            "provenance": {"$ref": "#/$defs/Provenance", "description": "What the study is about."},
            "identity": {
                "type": "object",
                "additionalProperties": TEXT,
                "description": "The parts of what makes two tunings the same, in words: batch, for instance.",
            },
            "result": {**answer, "description": "Its answer; null as long as it has none."},
            "trials": {
                "type": "array",
                "items": {"$ref": "#/$defs/Trial"},
                "description": "Every trial, in the order they ended.",
            },
            "nearest": {
                "anyOf": [{"$ref": "#/$defs/Nearest"}, {"type": "null"}],
                "description": "With --why only: the stored study that it is most like; null where there is no other.",
            },
        },
        optional=("nearest",),
    )


def _provenance(records):
    records.definitions["Provenance"] = obj(
        "What the study is about: its study.json.",
        {
            "format": {**WHOLE, "description": "Counts up when studies can no longer be read as they were."},
            "autorecompute": {**TEXT, "description": "The version that began it."},
            "study": {**TEXT, "description": "Its name when it was begun."},
            "created": {**TEXT, "format": "date-time", "description": "When it was begun."},
            "command": {**TEXTS, "description": "The command that was tuned."},
            "digest": {**TEXT, "description": "Sixteen hexadecimal digits, equal for equal problems."},
            "problem": {**records.reference(Problem), "description": "All that its figures depend on."},
            "sizes": {**records.reference(Sizes), "description": "The sizes that they were measured at."},
            "machine": {**TEXT, "description": "Digest of the machine that began it; not there where it was imported."},
            "is_imported": {**FLAG, "description": "True where it came from an archive; not there otherwise."},
        },
        optional=("machine", "is_imported"),
    )


def _nearest(records):
    records.definitions["Nearest"] = obj(
        "A stored study that another is like.",
        {
            "study": {**TEXT, "description": "Its name."},
            "is_shipped": {**FLAG, "description": "Whether it comes with autorecompute."},
            "has_same_plans": {
                **FLAG,
                "description": "Whether a tuning starts from it: its plans are the same.",
            },
            "differences": _differences(records),
        },
    )


def _differences(records):
    items = records.reference(Difference)
    return {"type": "array", "items": items, "description": "In what their problems differ; empty where in nothing."}


def studies(records):
    """The list of studies."""
    verdict = records.reference(Verdict)
    null_or_text = {"type": ["string", "null"]}
    records.definitions["Study"] = obj(
        "A study in a line.",
        {
            "study": {**TEXT, "description": "Its name."},
            "problem": {**null_or_text, "description": "Digest of its problem; null where it cannot be read."},
            "verdict": {
                "anyOf": [verdict, {"type": "null"}],
                "description": "What was found out; null without an answer.",
            },
            "command": {"type": ["array", "null"], "items": TEXT, "description": "The command that was tuned."},
            "note": {**TEXT, "description": "The best config, that there is no answer yet, or why it cannot be read."},
        },
    )
    return obj(
        "",
        {"studies": {"type": "array", "items": {"$ref": "#/$defs/Study"}, "description": "The studies, by name."}},
    )


def compare(records):
    """Two studies side by side."""
    differences, answer = _differences(records), answer_or_null(records)
    records.definitions["Compared"] = obj(
        "One of two studies.",
        {
            "study": {**TEXT, "description": "Its name."},
            "problem": {**TEXT, "description": "Digest of its problem."},
            "trials": {**WHOLE, "description": "How many configs it measured."},
            "result": {**answer, "description": "Its answer; null as long as it has none."},
        },
    )
    compared = {
        "type": "array",
        "items": {"$ref": "#/$defs/Compared"},
        "description": "Both, as they were named.",
    }
    return obj("", {"differences": differences, "studies": compared})


def check(records):
    """What a check found."""
    records.reference(CheckReport)
    report = records.definitions.pop("CheckReport")
    valid = {**FLAG, "description": "Whether the config still holds here: no line fails."}
    return obj("", {"valid": valid, **report["properties"]})
