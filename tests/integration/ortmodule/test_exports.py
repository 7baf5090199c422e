import json

import pytest

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

TOLERANCES = {"float32": 1e-5, "float16": 1e-2}
"""Largest difference that another order of sums may leave, relative to the largest gradient."""

COUNTS = {"float32": 43, "float16": 3, "dropped": 3}
"""Models of each kind in the script."""

DROPPED_SHARE = 0.3

OPERATORS = {
    "lgamma": "aten::lgamma, called in Part 'body.layers.0.1' (refusals.py:",
    "cumprod": "aten::cumprod, called in Part 'body.layers.0.1' (refusals.py:",
    "smoothing": "aten::cross_entropy_loss, called in Part 'body.layers.0.1' (refusals.py:",
    "norm": "ReduceL2, called in Part 'body.layers.0.1'",
    "reflection": "Pad, called in Part 'body.layers.0.1'",
    "flip": "Slice, called in Part 'body.layers.0.1'",
    "first of two": "called in Part 'body.layers.0.1'",
    "transposed": "ConvTranspose, called in ConvTranspose2d '1'",
    "scatter_reduce": "aten::scatter_reduce, called in Part 'body.layers.0.1' (refusals.py:",
    "index_put": "aten::index_put, called in Part 'body.layers.0.1' (refusals.py:",
    "same": "aten::_convolution_mode, called in Conv2d '0'",
}


@pytest.fixture(scope="module")
def told_by(make_workplace):
    def told_by(script):
        trained = make_workplace(script).train(f"{script}.py")
        assert trained.code == 0, trained.stderr
        return [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]

    return told_by


@pytest.fixture(scope="module")
def exported(told_by):
    lines = told_by("exports")
    return lambda kind: {line["name"]: line for line in lines if line["kind"] == kind}


@pytest.fixture(scope="module")
def refused(told_by):
    return {line["name"]: line for line in told_by("refusals")}


@pytest.mark.parametrize("kind", TOLERANCES)
def test_models_learn_what_they_learn_in_pytorch_and_under_autocast(exported, kind):
    worst = {name: found["worst"] for name, found in exported(kind).items()}
    assert len(worst) == COUNTS[kind]
    assert {name: share for name, share in worst.items() if not share < TOLERANCES[kind]} == {}


def test_dropout_within_attention_is_that_of_pytorch(exported):
    assert len(exported("dropped")) == COUNTS["dropped"]
    for name, found in exported("dropped").items():
        assert found["share"] == pytest.approx(DROPPED_SHARE, abs=0.1), name
        assert max(found["worst"], found["outputs"]) < TOLERANCES["float32"], name


def test_the_parts_of_attention_are_recomputed_and_what_is_drawn_is_drawn_again(exported):
    operators = {name: set(found["operators"]) for name, found in exported("recomputed").items()}
    assert {name for name, found in operators.items() if {"Softmax", "Dropout"} <= found} == {*operators} - {"noise"}
    assert operators.keys() == {"GPT-2", "BERT", "nanoGPT", "encoder", "noise"}
    assert {found["worst"] for found in exported("recomputed").values()} == {0}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_that_cannot_be_exported_is_named(refused, operator):
    told = refused[f"operator {operator}"]
    assert told["outcome"] == "export_error"
    assert OPERATORS[operator] in told["sentence"]
    assert ("Give its padding in numbers." in told["sentence"]) is (operator == "same")
    assert told["sentence"].endswith("Replace it, or wrap only the part of the model without it.")
    assert "onnxruntime_src" not in told["sentence"]


def test_bfloat16_on_a_cpu_is_refused_in_every_form(refused):
    forms = {name: told for name, told in refused.items() if name.startswith("bfloat16 ")}
    assert len(forms) == 3
    for name, told in forms.items():
        assert told["outcome"] == "export_error", name
        assert told["sentence"].endswith("A CPU has none: train in float32 or float16 there."), name


def test_checkpointing_without_effect_is_warned_about(scripts, tmp_path):
    job = Job(script=scripts / "odd_models.py", arguments=("--model", "checkpointed"))
    with Bench(job, None, tmp_path) as bench:
        (warning,) = bench.measure(Config(), Effort(warmup=1, steps=2)).warnings
    assert "switch gradient checkpointing off" in warning


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("checkpoint", "Switch gradient checkpointing off: recompute plans take its place."),
        *((f"compile{part}", "Leave torch.compile out") for part in ("", " in place", " a part", " a function")),
    ],
)
def test_what_ortmodule_does_without_is_to_be_left_out(refused, model, words):
    assert refused[model]["outcome"] == "export_error"
    assert words in refused[model]["sentence"]


def test_a_mistake_in_the_model_stays_the_scripts_own(refused):
    told = refused["mistake"]
    assert (told["outcome"], told["sentence"]) == (
        "script_error",
        "AttributeError: 'Tensor' object has no attribute 'unsqeeze'",
    )
