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


def test_a_model_that_the_script_drops_is_dropped(told):
    assert told["earlier folds"] == [[False, False]]


def test_each_fold_trains_as_the_first_one(told):
    assert told["fold"] == [[8], [8], *([[], [8]] * 3)]


def test_a_later_fold_can_be_profiled(told):
    assert told["profiled"] == [True]


def test_the_model_that_is_tuned_is_the_one_that_is_counted(told):
    assert told["gan"] == [[8, 8], [8, 8, 8]]


def test_gradients_are_compared_in_the_model_that_is_tuned(told):
    assert told["agrees"] == [True, True]
