"""Plans given out: rendered by the controller, read again in a script, and refused where they were not measured."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from autorecompute.backends.torch import applying
from autorecompute.backends.torch.controller import render, unmeasured
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.interception import around_of
from autorecompute.backends.torch.plans_file import VARIABLE, PlansFile, read_plans_file
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from tiny_models import differences, make

OPERATORS = Config.parse(["transformer.h.*:checkpoint:1", "transformer.h.*.mlp.act/mul:drop", "transformer.drop:drop"])
PLANS = Config.parse(["transformer.h.*:checkpoint:1", "transformer.h.*.mlp.act/mul:drop"])


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    """Nobody has decided in this process what is recomputed."""
    monkeypatch.setattr(applying._Elsewhere, "decides", False)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def file_of(tmp_path):
    """Writes what a study gives out for a model."""

    def write(config, model):
        rendered = render(config, versions={"model": name_of(model), "torch": torch.__version__}, folder=tmp_path)
        (file,) = rendered.files
        file.write_text(rendered.files[file])
        assert rendered.variables == {VARIABLE: str(file)}
        return file

    return write


def test_unmeasured_plans_are_applied_and_called_so(tmp_path, caplog):
    """They train to the same bits, and the log says once that nobody measured them; measured ones say nothing."""
    training = make("gpt2")
    expected = copy.deepcopy(training).gradients()
    file = tmp_path / "planned.json"
    file.write_text(unmeasured(PLANS, {"model": name_of(training.model), "torch": torch.__version__}))
    applying.apply(training.model, file)
    assert differences(training.gradients(), expected) == []
    told = [record.getMessage() for record in caplog.records if record.name.startswith("autorecompute")]
    assert len(told) == 1
    assert "unmeasured" in told[0]


def test_plans_are_on_from_the_first_training_call_and_change_no_bit(file_of):
    """Evaluation does not begin it; then the first block is checkpointed, and operators of the other are dropped."""
    training = make("gpt2")
    expected = copy.deepcopy(training).gradients()
    applying.apply(training.model, file_of(PLANS, training.model))
    training.model.eval()
    training.loss(training.model, training.batch)
    training.model.train()
    assert not around_of(training.model.transformer.h[0])
    assert differences(training.gradients(), expected) == []
    assert around_of(training.model.transformer.h[0])
    assert around_of(training.model.transformer.h[1])
    assert differences(training.gradients(), expected) == []


def test_without_a_path_the_environment_names_the_file(file_of, monkeypatch):
    """And where it names none, nothing happens: the same script can be tuned."""
    training = make("gpt2")
    applying.apply(training.model)
    assert not around_of(training.model)
    monkeypatch.setenv(VARIABLE, str(file_of(PLANS, training.model)))
    applying.apply(training.model)
    training.gradients()
    assert around_of(training.model.transformer.h[0])


def test_another_model_is_told_that_the_plans_are_not_for_it(file_of):
    """At once, before it trains, with both names."""
    file = file_of(PLANS, make("gpt2").model)
    with pytest.raises(
        UsageError, match=r"another model \(GPT2LMHeadModel .*\) than this one \(GPT2LMHeadModel .*Tune"
    ):
        applying.apply(make("gpt2", layers=3).model, file)


def test_a_plan_that_the_model_does_not_offer_is_named(file_of):
    """In the first training call, when it is known what is offered."""
    training = make("gpt2")
    applying.apply(training.model, file_of(OPERATORS, training.model))
    with pytest.raises(UsageError, match=r"does not offer transformer\.drop:drop"):
        training.gradients()


def test_plans_of_a_model_are_not_for_it_when_it_is_compiled(file_of):
    """It has other plans, and the sentence names both."""
    model = nn.Linear(2, 2)
    file = file_of(PLANS, model)
    model.compile(backend="eager")
    with pytest.raises(UsageError, match=r"than this one \(Linear \w+ compiled\).*torch\.compile"):
        applying.apply(model, file)


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": 2, "model": "", "torch": "", "plans": []}', '{"format": 1, "plans": ["a:b"]}'),
        '{"format": 1, "unmeasured": false, "model": "", "torch": "", "plans": []}',
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, text):
    """Whatever else stands in it."""
    file = tmp_path / "plans.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="file of plans"):
        read_plans_file(file)


def test_a_file_says_what_was_written(tmp_path):
    """The config, the model and the version of torch."""
    file, content = tmp_path / "plans.json", PlansFile(config=PLANS, model="Net 12", torch="2.13.0")
    file.write_text(content.text)
    assert read_plans_file(file) == content


def test_nothing_is_written_where_nothing_is_recomputed(tmp_path):
    """No variable and no file."""
    rendered = render(Config(), versions={}, folder=tmp_path)
    assert (rendered.variables, rendered.files) == ({}, {})
    with pytest.raises(UsageError, match="no setting"):
        render(Config(), knobs=["layer_boundaries"], versions={}, folder=tmp_path)


def test_a_script_that_says_nothing_is_led_by_the_environment(file_of, tmp_path):
    """The first module that trains and its twin get the plans, and nothing is followed after a step."""
    file = file_of(
        Config.parse(["0:checkpoint"]), nn.Sequential(nn.Sequential(nn.Linear(4, 64), nn.GELU()), nn.Linear(64, 4))
    )
    script = tmp_path / "train.py"
    script.write_text(
        """
import torch
from autorecompute.backends.torch.applying import follow_environment
from autorecompute.backends.torch.interception import around_of
call = torch.nn.Module.__call__
follow_environment()
models = [
    torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.GELU()), torch.nn.Linear(64, width))
    for width in (4, 8, 4)
]
optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.1)
for _ in range(2):
    sum(model(torch.ones(512, 4)).sum() for model in models).backward()
    optimizer.step()
print([len(around_of(model[0])) for model in models], torch.nn.Module.__call__ is call)
"""
    )
    done = subprocess.run(
        [sys.executable, script],
        check=False,
        env={VARIABLE: str(file), "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1, 0, 1] True\n", "")
