"""What a study gives out to train with."""

from pathlib import Path

from autorecompute.backends.registry import render
from autorecompute.emit.handing import hand_out
from fake_backend.controller import PLANS_VARIABLE, read_config

PLACE = Path("/studies/bert/best")


def rendered(result, place=PLACE):
    """What the answer of a study is switched on with, whose files lie in a place; ``None`` where there is none."""
    best = result.best
    return None if best is None else render(best.config, best.knobs, result.versions, place)


def variables_of(folder):
    """The variables of a study's answer."""
    return hand_out(folder, folder.result()).variables


def choices_of(folder):
    """The choices that they switch on, as the fake backend reads them from the file in the study's own folder."""
    variables = variables_of(folder)
    assert Path(variables[PLANS_VARIABLE]).is_relative_to(folder.path)
    return read_config(variables).texts
