"""Scripts with more than one ORTModule: the folds of a cross-validation, and a GAN."""

import json
import re

import pytest


@pytest.fixture(scope="module")
def told(make_workplace):
    """What the script's listener was told, by what trained."""
    trained = make_workplace("folds").train("folds.py")
    assert trained.code == 0, trained.stderr
    found = {}
    for name, value in re.findall(r"^(\w[\w ]*) ([\[tf].*)$", trained.stdout, re.MULTILINE):
        found.setdefault(name, []).append(json.loads(value))
    return found


def test_a_model_that_the_script_drops_is_dropped(told):
    """The models of earlier folds are gone once the script has let go of them."""
    assert told["earlier folds"] == [[False, False]]


def test_each_fold_trains_as_the_first_one(told):
    """Steps of each fold are told with their batch, but for the one in which its session is made."""
    assert told["fold"] == [[8], [8], *([[], [8]] * 3)]


def test_a_later_fold_can_be_profiled(told):
    """A profile that is ordered comes from the model that trains then, though an earlier one is kept."""
    assert told["profiled"] == [True]


def test_the_model_that_is_tuned_is_the_one_that_is_counted(told):
    """A step of a GAN has three forwards of the critic, built like the first model; the generator's do not count."""
    assert told["gan"] == [[8, 8], [8, 8, 8]]


def test_gradients_are_compared_in_the_model_that_is_tuned(told):
    """A comparison that is ordered waits for the critic's session, whose plans they are, and runs there."""
    assert told["agrees"] == [True, True]
