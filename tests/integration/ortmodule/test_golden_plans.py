import difflib
import json
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[3] / "studies"
GOLDEN = Path(__file__).parents[2] / "golden" / "plans"
USUAL = ("bert_mlm", "resnet_images")


def pytest_generate_tests(metafunc):
    every = sorted(script.parent.name for script in STUDIES.glob("*/train.py"))
    metafunc.parametrize("study", every if metafunc.config.getoption("--every-study", default=False) else USUAL)


def test_the_plans_of_a_study_are_those_recorded(make_workplace, request, study):
    place = make_workplace(study)
    training = (str(STUDIES / study / "train.py"), "--json", "--", "--ortmodule", "--device", "cpu")
    looked = place.finish(place.start("-m", "autorecompute", "plans", *training))
    assert looked.code == 0, looked.stderr
    live = written(normalise(looked.answer))
    golden = GOLDEN / f"{study}-ort{looked.answer['versions']['onnxruntime']}.json"
    if request.config.getoption("--record-golden"):
        golden.write_text(live)
    assert golden.exists(), f"{golden.name} was never recorded: make golden-plans"
    recorded = written(json.loads(golden.read_text()))
    if live != recorded:
        pytest.fail(describe_difference(recorded, live, golden.name), pytrace=False)


def written(answer):
    """The text of an answer, whose keys have no order."""
    return json.dumps(answer, indent=1, sort_keys=True) + "\n"


def normalise(answer):
    return {
        **answer,
        "plans": [normalise_plan(plan) for plan in answer["plans"]],
        "device": {**answer["device"], "name": "<name of the processor>"},
        "versions": {**answer["versions"], "python": "<version>", "torch": "<version>"},
        "command": answer["command"].replace(f"{STUDIES}/", "<studies>/"),
    }


def normalise_plan(plan):
    return {**plan, "stated_bytes": "<bytes of some outputs>"} if plan["is_corrected"] else plan


def describe_difference(recorded, live, name):
    difference = difflib.unified_diff(recorded.splitlines(), live.splitlines(), name, "live", n=8, lineterm="")
    return "\n".join(["the plans are others; if they should be: make golden-plans", *difference])
