from pathlib import Path

from autorecompute.backends.registry import render
from autorecompute.emit import hand_out
from fake_backend.controller import PLANS_VARIABLE, read_config

PLACE = Path("/studies/bert/best")


def rendered(result, place=PLACE):
    best = result.best
    return None if best is None else render(best.config, best.knobs, result.versions, place)


def variables_of(folder):
    return hand_out(folder, folder.result()).variables


def choices_of(folder):
    variables = variables_of(folder)
    assert Path(variables[PLANS_VARIABLE]).is_relative_to(folder.path)
    return read_config(variables).texts
