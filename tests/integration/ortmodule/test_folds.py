import json
import re

import pytest


@pytest.fixture(scope="module")
def told(make_workplace):
    trained = make_workplace("folds").train("folds.py")
    assert trained.code == 0, trained.stderr
    found = {}
    for name, value in re.findall(r"^(\w[\w ]*) ([\[tf].*)$", trained.stdout, re.MULTILINE):
        found.setdefault(name, []).append(json.loads(value))
    return found


TOLD = {
    "a model that the script drops is dropped": ("earlier folds", [[False, False]]),
    "each fold trains as the first one": ("fold", [[8], [8], *([[], [8]] * 3)]),
    "a later fold can be profiled": ("profiled", [True]),
}


@pytest.mark.parametrize("what", TOLD)
def test_of_several_models_those_built_alike_are_tuned(told, what):
    name, values = TOLD[what]
    assert told[name] == values
