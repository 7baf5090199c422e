"""What each verb prints with ``--json``, put together from records and from what is made for printing alone."""

from __future__ import annotations

import copy

from autorecompute.backends.ortmodule.diagnose import Finding
from autorecompute.figures import Figures, KnobFigures
from autorecompute.measurement import Device
from autorecompute.result import Best, Result, Verdict
from schemas.answer import CHOICES, VARIABLES, tune
from schemas.plans import PLANS, PLANS_DEFINITIONS
from schemas.records import TEXT, TEXTS, Records, described, obj
from schemas.stored import check, compare, show, studies

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def all_schemas():
    """Every published schema by its name."""
    return {
        "tune": _publish("tune", "What tune --json prints: the answer of a study.", tune),
        "show": _publish("show", "What show STUDY --json prints: a study with all its trials.", show),
        "studies": _publish("studies", "What show and studies list print with --json: the studies.", studies),
        "compare": _publish("compare", "What studies compare --json prints: two studies side by side.", compare),
        "check": _publish("check", "What check --json prints: whether a stored config still holds here.", check),
        "plans": _publish("plans", "What plans --json prints: what could be recomputed.", _plans),
        "emit": _publish("emit", "What emit --format json prints: what to train with.", _emit),
        "doctor": _publish("doctor", "What doctor --json prints: what is installed.", _doctor),
    }


def _publish(name, description, make):
    records = Records()
    body = make(records)
    return {
        "$schema": DRAFT,
        "$id": f"urn:autorecompute:schema:{name}",
        "title": f"autorecompute {name}",
        "$comment": "Later versions may add properties. What is listed stays, and an unmeasured number is null.",
        **body,
        "description": description,
        "$defs": records.definitions,
    }


def _plans(records):
    records.definitions |= copy.deepcopy(PLANS_DEFINITIONS)
    return copy.deepcopy(PLANS)


def _emit(records):
    result = described(Result)
    hints = Records()
    hints.reference(Best)
    told = hints.definitions["Best"]["properties"]
    properties = {
        "environment": VARIABLES,
        "unset": {**TEXTS, "description": "Variables that must not be set while it trains."},
        "config": CHOICES,
        "config_hash": {**TEXT, "description": "Twelve hexadecimal digits, the same for equal configs."},
        **{name: told[name] for name in ("description", "batch", "samples_per_second", "relative_throughput")},
        **{name: told[name] for name in ("peak_bytes", "limit_bytes", "confirmed")},
        "study": {**TEXT, "description": result["study"]},
        "problem": {**TEXT, "description": result["problem"]},
        "verdict": {**records.reference(Verdict), "description": result["verdict"]},
        "baseline": {**records.reference(Figures), "description": result["baseline"]},
        "rival": {"anyOf": [records.reference(Figures), {"type": "null"}], "description": result["rival"]},
        "knobs": {"type": "array", "items": records.reference(KnobFigures), "description": result["knobs"]},
        "device": {**records.reference(Device), "description": result["device"]},
        "versions": {"type": "object", "additionalProperties": TEXT, "description": result["versions"]},
        "command": {**TEXTS, "description": result["command"]},
        "wrap": {"type": "boolean", "description": result["wrap"]},
        "autorecompute": {**TEXT, "description": "The version that wrote this."},
    }
    return obj("", properties)


def _doctor(records):
    return obj(
        "",
        {
            "ok": {"type": "boolean", "description": "Whether this installation can train."},
            "findings": {
                "type": "array",
                "items": records.reference(Finding),
                "description": "Every piece, in the order in which they are to be repaired.",
            },
        },
    )
