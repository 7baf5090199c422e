"""The answer of a study, as ``tune --json`` prints it and as it is a part of what other verbs print."""

from __future__ import annotations

from autorecompute.figures import Figures
from autorecompute.reports.predictions import Summary
from autorecompute.result import Result
from schemas.records import TEXT, TEXTS, WHOLE, obj

CHOICES = {**TEXTS, "description": "What is recomputed, as SITE:OPTION or SITE:OPTION:COUNT."}

VARIABLES = {
    "type": "object",
    "additionalProperties": {"type": "string"},
    "description": "The variables that switch it on in an unmodified run.",
}


def tune(records):
    """The answer."""
    records.reference(Result)
    result = records.definitions.pop("Result")
    properties = result["properties"]
    _answer(records, properties)
    for unused in ("CurvePoint", "Recomputed", "Config"):
        records.definitions.pop(unused, None)
    return result


def _answer(records, properties):
    """The shapes that the contract has, where they are not those of the records."""
    best = records.definitions["Best"]
    config = best["properties"].pop("config")
    best["properties"] = {
        "config": {**CHOICES, "description": config["description"]},
        "env": {
            "anyOf": [VARIABLES, {"type": "null"}],
            "description": "The variables that switch it on; null where the study was imported and not checked here.",
        },
        **best["properties"],
    }
    best["required"] = list(best["properties"])
    figures = records.reference(Figures)
    point = obj(
        "A batch on the curve of throughput against batch.",
        {
            "batch": {**WHOLE, "description": "Samples a forward."},
            "without": {**figures, "description": "Without recompute."},
            "with": {
                "anyOf": [{"$ref": "#/$defs/With"}, {"type": "null"}],
                "description": "With it; null where the batch fits without, or was not tuned.",
            },
        },
    )
    told = records.definitions["Figures"]["properties"]
    records.definitions["With"] = obj(
        "What a batch comes to with recompute.",
        {
            **told,
            "study": {**TEXT, "description": "The study that tuned it."},
            "description": {**TEXT, "description": "The best config in a few words, or that none fits."},
            "least_peak_bytes": {
                "type": ["integer", "null"],
                "description": "The least peak that any config was seen to have. In bytes.",
            },
            "config": {"type": ["array", "null"], "items": TEXT, "description": "Its choices; null where none fits."},
        },
    )
    records.definitions["CurvePoint "] = point
    properties["curve"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/Point"},
        "description": properties["curve"]["description"],
    }
    records.definitions["Point"] = records.definitions.pop("CurvePoint ")
    records.definitions["RunnerUp"] = obj(
        "A config that fits and was not the best.",
        {"description": {**TEXT, "description": "The config in a few words."}, **told},
    )
    properties["runners_up"] = {
        "type": "array",
        "items": {"$ref": "#/$defs/RunnerUp"},
        "description": "The fastest others that fit, as on the last screen; of several batches, at that of best.",
    }
    properties["predictions"] = {
        "anyOf": [records.reference(Summary), {"type": "null"}],
        "description": "How far off the predictions were, of several batches at that of best; null without any.",
    }


def answer_or_null(records):
    """The answer as a part of another object."""
    result = tune(records)
    result["required"] = list(result["properties"])
    records.definitions["Answer"] = {**result, "description": "The answer, as tune --json prints it."}
    return {"anyOf": [{"$ref": "#/$defs/Answer"}, {"type": "null"}]}
