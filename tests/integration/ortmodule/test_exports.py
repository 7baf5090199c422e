import json

import pytest

from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

TOLERANCES = {"float32": 1e-5, "float16": 1e-2}
"""Largest difference that another order of sums may leave, relative to the largest gradient."""

MODELS = (
    "attention",
    "causal attention",
    "attention with a boolean mask",
    "attention with an added mask",
    "attention with a scale",
    "attention with shared keys",
    "attention that may see nothing",
    "attention with an added mask that may see nothing",
    "attention with a learned bias",
    "unflatten the last dimension",
    "unflatten with an open size",
    "unflatten another dimension",
    "multi-head attention",
    "multi-head attention without weights",
    "encoder layer",
    "encoder layer without bias",
    "padded encoder",
    "norms without bias",
    "norms without weight and bias",
    "norms of few features",
    "norms of nanoGPT",
    "norms whose shape is traced",
    "RMS norms",
    "RMS norms without weight",
    "GPT-2",
    "GPT-2 without a mask",
    "BERT",
    "diff",
    "bernoulli",
    "softplus",
    "softplus of large numbers",
    "max_pool1d",
    "max_pool1d that overlaps",
    "index_add",
    "index_add to what is there",
    "scatter_add",
    "scatter_reduce",
    "index_put",
    "index_put that accumulates",
    "index_put that spreads",
    "logsumexp",
    "logsumexp of large numbers",
    "convolution without padding",
)

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
BFLOAT16 = (
    "around",
    "around by amp",
    "around by cpu.amp",
    "within",
    "by a decorator",
    "weights",
    "by accelerate",
    "by lightning",
)


@pytest.fixture(scope="module")
def exported(make_workplace):
    trained = make_workplace("exports").train("exports.py")
    assert trained.code == 0, trained.stderr
    lines = [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]
    return {(line["kind"], line["name"]): line for line in lines}


@pytest.fixture(scope="module")
def refused(make_workplace):
    trained = make_workplace("refusals").train("refusals.py")
    assert trained.code == 0, trained.stderr
    lines = [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_learns_what_it_learns_in_pytorch(exported, model):
    assert exported["float32", model]["worst"] < TOLERANCES["float32"]


@pytest.mark.parametrize("model", ["attention with a boolean mask", "norms without bias", "RMS norms"])
def test_a_model_learns_under_autocast(exported, model):
    assert exported["float16", model]["worst"] < TOLERANCES["float16"]


@pytest.mark.parametrize("attention", ["causal", "with a boolean mask", "with an added mask"])
def test_dropout_within_attention_is_that_of_pytorch(exported, attention):
    found = exported["dropped", attention]
    assert found["share"] == pytest.approx(DROPPED_SHARE, abs=0.1)
    assert max(found["worst"], found["outputs"]) < TOLERANCES["float32"]


@pytest.mark.parametrize("model", ["GPT-2", "BERT", "nanoGPT", "encoder"])
def test_the_parts_of_attention_are_recomputed(exported, model):
    found = exported["recomputed", model]
    assert {"Softmax", "Dropout"} <= set(found["operators"])
    assert found["worst"] == 0


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_that_cannot_be_exported_is_named(refused, operator):
    told = refused[f"operator {operator}"]
    assert told["outcome"] == "export_error"
    assert OPERATORS[operator] in told["sentence"]
    assert told["sentence"].endswith("Replace it, or wrap only the part of the model without it.")
    assert "onnxruntime_src" not in told["sentence"]


@pytest.mark.parametrize("form", BFLOAT16)
def test_bfloat16_on_a_cpu_is_refused_in_every_form(refused, form):
    told = refused[f"bfloat16 {form}"]
    assert told["outcome"] == "export_error"
    assert told["sentence"].endswith("A CPU has none: train in float32 or float16 there.")


def test_a_checkpointed_model_is_told_to_leave_that_to_the_plans(refused):
    told = refused["checkpoint"]
    assert told["outcome"] == "export_error"
    assert told["sentence"].endswith("Switch gradient checkpointing off: recompute plans take its place.")


def test_checkpointing_without_effect_is_warned_about(scripts, tmp_path):
    job = Job(script=scripts / "odd_models.py", arguments=("--model", "checkpointed"))
    with Bench(job, None, tmp_path) as bench:
        (warning,) = bench.measure(Config(), Effort(warmup=1, steps=2)).warnings
    assert "switch gradient checkpointing off" in warning


@pytest.mark.parametrize("model", ["compile", "compile in place", "compile a part", "compile a function"])
def test_a_compiled_model_is_told_to_leave_that_out(refused, model):
    told = refused[model]
    assert told["outcome"] == "export_error"
    assert "Leave torch.compile out" in told["sentence"]


def test_a_mistake_in_the_model_stays_the_scripts_own(refused):
    told = refused["mistake"]
    assert (told["outcome"], told["sentence"]) == (
        "script_error",
        "AttributeError: 'Tensor' object has no attribute 'unsqeeze'",
    )
