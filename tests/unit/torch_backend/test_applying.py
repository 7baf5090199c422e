"""Plans given out: rendered by the controller, read again in a script, and refused where they were not measured."""

import copy
import json
import os
import re
import subprocess
import sys
import threading

import pytest
import torch
from torch import nn

from autorecompute.backends.torch.controller import IMPORT_HOOK, render, unmeasured
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.forecast.plans_file import VARIABLE, read_plans_file
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from autorecompute.startup import HOOKS_VARIABLE, prepend_to_python_path
from autorecompute.training_job import BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE
from tiny_models import differences, make

PLANS = Config.parse(["transformer.h.*:checkpoint:1", "transformer.h.*.mlp.act/mul:drop"])


@pytest.fixture(autouse=True)
def undecided(monkeypatch):
    monkeypatch.setattr(applying, "ELSEWHERE", threading.Event())
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def file_of(tmp_path):
    def write(config, model):
        rendered = render(config, versions={"model": name_of(model), "torch": torch.__version__}, folder=tmp_path)
        (file,) = rendered.files
        file.write_text(rendered.files[file])
        assert rendered.variables == {VARIABLE: str(file)}
        return file

    return write


def test_unmeasured_plans_are_called_so_once(tmp_path, caplog):
    training, file = make("gpt2"), tmp_path / "planned.json"
    file.write_text(unmeasured(PLANS, {"model": name_of(training.model), "torch": torch.__version__}))
    applying.apply(training.model, file)
    training.gradients()
    (told,) = (record.getMessage() for record in caplog.records if record.name.startswith("autorecompute"))
    assert "unmeasured" in told


def test_plans_are_on_from_the_first_training_call_and_change_no_bit(file_of):
    training = make("gpt2")
    expected = copy.deepcopy(training).gradients()
    applying.apply(training.model, file_of(PLANS, training.model))
    training.model.eval()
    training.loss(training.model, training.batch)
    training.model.train()
    assert not around_of(training.model.transformer.h[0])
    assert differences(training.gradients(), expected) == []
    assert all(map(around_of, training.model.transformer.h))
    assert differences(training.gradients(), expected) == []


def test_without_a_path_the_environment_names_the_file(file_of, monkeypatch):
    training = make("gpt2")
    applying.apply(training.model)
    assert not around_of(training.model)
    monkeypatch.setenv(VARIABLE, str(file_of(PLANS, training.model)))
    applying.apply(training.model)
    training.gradients()
    assert around_of(training.model.transformer.h[0])


def test_plans_of_blocks_that_are_trained_later_are_on_from_the_first_step(file_of):
    """They were made for the step that trains them, and nothing tells here that an optimizer holds them."""
    training = make("gpt2")
    training.model.transformer.requires_grad_(False)
    training.model.lm_head.weight = nn.Parameter(training.model.lm_head.weight.detach().clone())
    plans = Config.parse(["transformer.h.*:checkpoint"])
    applying.apply(training.model, file_of(plans, training.model))
    training.gradients()
    assert not any(parameter.requires_grad for parameter in training.model.transformer.parameters())
    training.model.requires_grad_(True)
    expected = copy.deepcopy(training).gradients()
    assert all(map(around_of, training.model.transformer.h))
    assert differences(training.gradients(), expected) == []


def test_another_model_is_told_and_a_plan_that_the_model_does_not_offer_is_named(file_of):
    file = file_of(PLANS, make("gpt2").model)
    message = r"another model \(GPT2LMHeadModel .*\) than this one \(GPT2LMHeadModel .*Tune"
    with pytest.raises(UsageError, match=message):
        applying.apply(make("gpt2", layers=3).model, file)
    training = make("gpt2")
    applying.apply(training.model, file_of(Config.parse(["transformer.drop:drop"]), training.model))
    with pytest.raises(UsageError, match=r"does not offer transformer\.drop:drop"):
        training.gradients()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"format": 2, "model": "", "torch": "", "plans": []}', '{"format": 1, "plans": ["a:b"]}'),
        '{"format": 1, "unmeasured": false, "model": "", "torch": "", "plans": []}',
        *(
            json.dumps({"format": 1, "model": "", "torch": "", "plans": [], **named})
            for hostile in ("\x1b]0;title\x07", "\u202eabc", "x" * 2000)
            for named in ({"model": hostile}, {"torch": hostile}, {"plans": [f"{hostile}:drop"]})
        ),
    ],
    ids=lambda text: text[:60].encode("unicode_escape").decode(),
)
def test_a_file_that_is_none_is_refused(tmp_path, text):
    file = tmp_path / "plans.json"
    file.write_text(text)
    with pytest.raises(UsageError, match="file of plans"):
        read_plans_file(file)


def test_nothing_is_written_where_nothing_is_recomputed(tmp_path):
    rendered = render(Config(), versions={}, folder=tmp_path)
    assert (rendered.variables, rendered.files) == ({}, {})
    with pytest.raises(UsageError, match="no setting"):
        render(Config(), knobs=["layer_boundaries"], versions={}, folder=tmp_path)


def small(width):
    return nn.Sequential(nn.Sequential(nn.Linear(4, 64), nn.GELU()), nn.Linear(64, width))


def test_the_first_module_that_trains_and_its_twin_follow_the_environment(file_of, monkeypatch):
    """Nothing is followed after a step."""
    models, call = [small(width) for width in (4, 8, 4)], nn.Module.__call__
    monkeypatch.setenv(VARIABLE, str(file_of(Config.parse(["0:checkpoint"]), models[0])))
    applying.follow_environment()
    optimizer = torch.optim.SGD([weight for model in models for weight in model.parameters()], lr=0.1)
    for _ in range(2):
        sum(model(torch.ones(512, 4)).sum() for model in models).backward()
        optimizer.step()
    assert [len(around_of(model[0])) for model in models] == [1, 0, 1]
    assert nn.Module.__call__ is call


PEAK_IS_TOLD = "the peak of this training was"
ABOVE_THE_LIMIT = f"{PEAK_IS_TOLD} [^,]+, above the limit of 1 MiB"
TRAINING = """
import os
import sys
import torch
from torch import nn

model = nn.Sequential(nn.Sequential(nn.Linear(4, 64), nn.GELU()), nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.ones(int(sys.argv[1]), 4)).sum().backward()
    optimizer.step()
if os.fork() == 0:
    sys.exit()
os.wait()
"""


def assert_told(stderr, told):
    lines = stderr.splitlines()
    assert len(lines) == len(told)
    for line, words in zip(lines, told, strict=True):
        assert re.match(f"autorecompute: {words}", line)
    assert all(line.endswith(", and 3.00 GiB in its study") for line in lines[len(told) - 1 :])


def test_a_training_is_held_against_its_study(tmp_path, file_of):
    environment = {
        **os.environ,
        VARIABLE: str(file_of(Config.parse(["0:checkpoint"]), small(4))),
        "PYTHONPATH": prepend_to_python_path(os.environ.get("PYTHONPATH", "")),
        HOOKS_VARIABLE: IMPORT_HOOK,
        BATCH_VARIABLE: "512",
        PEAK_VARIABLE: str(3 * 2**30),
    }
    command = [sys.executable, "-c", TRAINING, "256"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert_told(done.stderr, ["this training has a batch of 256, and the study was tuned for 512", PEAK_IS_TOLD])


@pytest.mark.parametrize(
    ("batch", "variables", "told"),
    [
        (512, {LIMIT_VARIABLE: str(2**60)}, [PEAK_IS_TOLD]),
        (512, {LIMIT_VARIABLE: str(2**20)}, [ABOVE_THE_LIMIT]),
        (256, {"RANK": "1"}, []),
        (256, {PEAK_VARIABLE: ""}, []),
    ],
    ids=["the same batch", "above the limit", "another rank", "a study without a peak"],
)
def test_only_what_differs_is_told_once(monkeypatch, capsys, batch, variables, told):
    for name, value in {BATCH_VARIABLE: "512", PEAK_VARIABLE: str(3 * 2**30), **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("atexit.register", lambda tell: tell())
    applying.hold_against_study(batch)
    assert_told(capsys.readouterr().err, told)
