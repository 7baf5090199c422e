"""What a study gives out to train with."""

from __future__ import annotations

import json
from pathlib import Path

from autorecompute.backends.registry import render
from autorecompute.emit.handing import hand_out
from autorecompute.plans import Config

PLACE = Path("/studies/bert/best")


def rendered(result, place=PLACE):
    """What the answer of a study is switched on with, whose files lie in a place; ``None`` where there is none."""
    best = result.best
    return None if best is None else render(best.config, best.knobs, result.versions, place)


def variables_of(folder):
    """The variables of a study's answer."""
    return hand_out(folder, folder.result()).variables


def choices_of(folder):
    """The choices that they switch on, as ORT reads them from the file in the study's own folder."""
    named = Path(variables_of(folder)["ORTMODULE_MEMORY_OPT_CONFIG"])
    assert named.is_relative_to(folder.path)
    return Config.parse(json.loads(named.read_text())).texts
