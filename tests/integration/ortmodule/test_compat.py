import importlib.metadata
import os
import re

import pytest


@pytest.fixture(scope="module")
def is_current_torch():
    version = importlib.metadata.version("torch")
    return tuple(map(int, version.split(".")[:2])) >= (2, 7)


def test_a_plain_script_trains_and_what_needs_nothing_is_not_touched(make_workplace, is_current_torch):
    """A second import changes nothing, and the script's own export is left alone."""
    finished = make_workplace("adapted").train("adapted.py", PYTHONPATH=os.environ.get("PYTHONPATH", ""))
    assert finished.code == 0, finished.stderr
    printed = dict(line.split(": ", 1) for line in finished.stdout.splitlines())
    assert (printed.pop("first") != "[]") == is_current_torch
    own, others = {"export is torch's own": str(not is_current_torch)}, {"own export is as ever": "True"}
    assert printed == {"weights moved": "True", "second": "[]", **own, **others}


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
