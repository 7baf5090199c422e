"""The plans of the studies at their default sizes, held against what was recorded.

A transformer and a convolutional network are looked at; ``make golden-plans-check`` looks at all studies, and
``make golden-plans`` records them again. What varies between runs, machines and versions of PyTorch is replaced by a
word for the kind of value that stands there.
"""

import difflib
import json
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"
GOLDEN = Path(__file__).parents[1] / "golden" / "plans"
USUAL = ("bert_mlm", "resnet_images")


def pytest_generate_tests(metafunc):
    """A test for each study that is looked at."""
    every = sorted(script.parent.name for script in STUDIES.glob("*/train.py"))
    metafunc.parametrize("study", every if metafunc.config.getoption("--every-study", default=False) else USUAL)


def test_the_plans_of_a_study_are_those_recorded(make_workplace, request, study):
    """Everything ``plans --json`` tells of a study is as recorded for this version of ORT, on whatever PyTorch."""
    place = make_workplace(study)
    command = (
        "-m",
        "autorecompute",
        "plans",
        str(STUDIES / study / "train.py"),
        "--json",
        "--",
        "--ortmodule",
        "--device",
        "cpu",
    )
    looked = place.finish(place.start(*command))
    assert looked.code == 0, looked.stderr
    live = json.dumps(normalise(looked.answer), indent=1) + "\n"
    golden = GOLDEN / f"{study}-ort{looked.answer['versions']['onnxruntime']}.json"
    if request.config.getoption("--record-golden"):
        golden.write_text(live)
    assert golden.exists(), f"{golden.name} was never recorded: make golden-plans"
    recorded = golden.read_text()
    if live != recorded:
        pytest.fail(describe_difference(recorded, live, golden.name), pytrace=False)


def normalise(answer):
    """The answer with a word for each value that is not the graph's own."""
    return {
        **answer,
        "plans": [normalise_plan(plan) for plan in answer["plans"]],
        "device": {**answer["device"], "name": "<name of the processor>"},
        "versions": {**answer["versions"], "python": "<version>", "torch": "<version>"},
        "command": answer["command"].replace(f"{STUDIES}/", "<studies>/"),
    }


def normalise_plan(plan):
    """ORT 1.19 states the saving of one output of each node, and which one is chance."""
    return {**plan, "stated_bytes": "<bytes of some outputs>"} if plan["is_corrected"] else plan


def describe_difference(recorded, live, name):
    """What differs, and what to do where it should."""
    difference = difflib.unified_diff(recorded.splitlines(), live.splitlines(), name, "live", n=8, lineterm="")
    return "\n".join(["the plans are others; if they should be: make golden-plans", *difference])
