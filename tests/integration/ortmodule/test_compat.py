import importlib.metadata
import os
import re

import pytest


@pytest.fixture(scope="module")
def is_current_torch():
    version = importlib.metadata.version("torch")
    return tuple(map(int, version.split(".")[:2])) >= (2, 7)


@pytest.fixture(scope="module")
def adapted(make_workplace):
    place = make_workplace("adapted")
    finished = place.train("adapted.py", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    return finished, dict(line.split(": ", 1) for line in finished.stdout.splitlines())


def test_a_plain_script_trains(adapted):
    finished, printed = adapted
    assert finished.code == 0, finished.stderr
    assert printed["weights moved"] == "True"


def test_a_second_import_changes_nothing(adapted):
    assert adapted[1]["second"] == "[]"


def test_where_nothing_is_needed_nothing_is_touched(adapted, is_current_torch):
    _, printed = adapted
    assert (printed["first"] != "[]") == is_current_torch
    assert printed["export is torch's own"] == str(not is_current_torch)


def test_the_scripts_own_export_is_left_alone(adapted):
    assert adapted[1]["own export is as ever"] == "True"


def test_a_custom_function_never_trains_with_a_wrong_gradient(workplace, is_current_torch):
    tuned = workplace.tune("custom_function.py", "--target-batch", "1")
    gradients = set(re.findall(r"^gradient (\S+)$", workplace.study().logs[0], re.MULTILINE))
    if is_current_torch:
        assert (tuned.code, gradients) == (5, set())
        sentence = tuned.complaint.splitlines()[0]
        assert "ORTModule cannot take this model" in sentence
        assert "TenfoldGradient, called in Model" in sentence
    else:
        assert (tuned.code, gradients) == (0, {"10.0"}), tuned.stderr


@pytest.mark.parametrize(("script", "gradient"), [("custom_function.py", "10.0"), ("padded.py", "right")])
def test_a_plain_script_falls_back_to_the_right_gradient(workplace, script, gradient):
    trained = workplace.train(script, ORTMODULE_FALLBACK_POLICY="FALLBACK_UNSUPPORTED_ONNX_MODEL")
    assert trained.code == 0, trained.stderr
    assert set(re.findall(r"^gradient (\S+)$", trained.stdout, re.MULTILINE)) == {gradient}
