from pathlib import Path

import pytest

import autorecompute
from autorecompute import codec
from autorecompute.backends.ortmodule import controller
from autorecompute.plans import Choice, Config, Plan, Space
from unit.conftest import build_detection

PAGE = Path(autorecompute.__file__).parents[1] / "docs" / "knobs.md"
PLANS = tuple(
    Plan(choices=(Choice(name, "1"),), label=name, occurrences=6, saving_bytes=100 - index, saving="d0")
    for index, name in enumerate(("Gelu+", "Softmax+", "Dropout+"))
)
LEVELS = {f"level_{level}": controller.config_of_level(level) for level in (1, 2)}


def make_place(torch="2.13.0", onnxruntime="1.19.2", *, has_boundaries=True, features=(), **changes):
    versions = {"python": "3.11", "torch": torch, "onnxruntime": onnxruntime, "backend": "ortmodule"}
    space = Space(plans=PLANS, own_presets=LEVELS if has_boundaries else {"level_1": Config.of(PLANS)})
    extra = codec.to_plain(controller.OrtDetection(layer_plans=PLANS[has_boundaries:], features=features))
    return build_detection(space, versions=versions, plan_versions=("onnxruntime",), extra=extra, **changes)


def reasons(detection, config=None):
    config = Config.of(detection.plans) if config is None else config
    return {knob.name: knob.why_not(config, detection) for knob in controller.KNOBS}


@pytest.mark.parametrize(
    ("place", "asked", "name", "reason"),
    [
        ({"has_boundaries": False}, {}, "layer_boundaries", "ORT finds the same plans"),
        ({}, {"config": Config()}, "layer_boundaries", "recomputes nothing"),
        ({}, {"config": controller.config_of_level(1)}, "layer_boundaries", "a level of ORT's"),
        ({}, {}, "mem_efficient_gradients", "1.19 raises"),
        ({"onnxruntime": "1.18.0"}, {}, "mem_efficient_gradients", "custom autograd"),
    ],
)
def test_what_does_nothing_here_says_why(place, asked, name, reason):
    assert reason in reasons(make_place(**place), **asked)[name]


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ({}, {"layer_boundaries", "no_model_copy"}),
        (
            {"onnxruntime": "1.17.3", "torch": "2.4.1", "features": (controller.CUSTOM_AUTOGRAD,)},
            {"layer_boundaries", "no_model_copy", "mem_efficient_gradients"},
        ),
    ],
)
def test_the_others_can_be_tried(place, names):
    assert {name for name, reason in reasons(make_place(**place)).items() if not reason} == names


def test_within_layers_other_plans_exist_and_no_two_knobs_set_the_same_variable():
    """The probe is cleared for trials."""
    place = make_place()
    found = {knob.name: knob.plans(place) for knob in controller.KNOBS if knob.plans is not None}
    assert found == {"layer_boundaries": controller.OrtDetection.of(place).layer_plans}
    names = [name for knob in (*controller.KNOBS, *controller.HINTS) for name in knob.variables]
    assert len(names) == len(set(names))
    (knob,) = [knob for knob in controller.KNOBS if knob.name == "layer_boundaries"]
    assert set(knob.variables) <= set(controller.VARIABLES)


@pytest.mark.parametrize("knob", [*controller.KNOBS, *controller.HINTS], ids=lambda knob: knob.name)
def test_the_documentation_has_every_knob(knob):
    row = next(line for line in PAGE.read_text().splitlines() if line.startswith(f"| `{knob.name}` |"))
    assert all(f"`{name}={value}`" in row for name, value in knob.variables.items())
