"""What whoever sets ORT's variables without ``run`` is told, and what lies in no file."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.backends.ortmodule.controller import NAME
from autorecompute.backends.ortmodule.environment import PROBE_VARIABLE
from autorecompute.backends.ortmodule.grammar import Level, config_of_level
from autorecompute.backends.registry import render
from autorecompute.emit.formats import RENDERERS
from autorecompute.plans import Config
from autorecompute.startup import HOOKS_VARIABLE
from autorecompute.studies import Problem, StudyFolder

CONFIG = Config.parse(["Gelu+:1:-1", "FusedMatMul+Add+:1:-1"])
VERSIONS = {"torch": "2.13.0", "onnxruntime": "1.19.2", "backend": NAME}


@pytest.fixture
def answer(make_result):
    """A study's answer, tuned with ORTModule."""
    return make_result(CONFIG, versions=VERSIONS)


@pytest.fixture
def told():
    """The lines for people, in one form, of what is printed of a study."""

    def told(form, result):
        best = result.best
        text = RENDERERS[form](result, render(best.config, best.knobs, result.versions, Path("/studies/bert/best")))
        return "\n".join(line for line in text.splitlines() if line.startswith("#"))

    return told


@pytest.mark.parametrize(
    ("config", "version"), [(Config(), "1.19.2"), (CONFIG, "1.18.0"), (config_of_level(Level.LAYERWISE), "1.19.2")]
)
def test_variables_without_a_file_need_none(config, version):
    """Only the form of ORT 1.19 depends on a file."""
    assert render(config, (), {**VERSIONS, "onnxruntime": version}, Path("nowhere")).files == {}


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_a_wrapped_study_names_the_one_way_to_train(told, answer, form):
    """The comments of a wrapped study say what wraps its model; those of any other do not speak of it."""
    assert "autorecompute run bert" in told(form, dataclasses.replace(answer, wrap=True))
    assert "autorecompute run bert" not in told(form, answer)


@pytest.mark.parametrize("form", ["shell", "dotenv"])
def test_a_variable_of_ours_comes_with_what_reads_it(told, answer, form):
    """ORT does not know the probe's variable: whoever sets it is told what has to be done besides."""
    with_probe = dataclasses.replace(answer, best=dataclasses.replace(answer.best, knobs=("layer_boundaries",)))
    lines = told(form, with_probe)
    assert PROBE_VARIABLE in lines.partition("must not be set")[2].partition("\n")[2]
    assert "autorecompute.compat" in lines
    assert PROBE_VARIABLE not in lines.partition("must not be set: ")[2].partition("\n")[0]


def test_a_wrapped_study_has_the_command_wrapped(make_detection, answer, tmp_path):
    """What wraps the model is called in a study that was wrapped, and in no other, whatever was set before."""
    folder = StudyFolder("bert", tmp_path / "studies")
    folder.prepare()
    folder.begin(Problem.of(make_detection(), 2**30), ["python", "train.py"])

    def run(result, **variables):
        folder.finish(result)
        command = [sys.executable, "-c", f"import os; print(os.environ['{HOOKS_VARIABLE}'])"]
        return subprocess.run(
            [sys.executable, "-m", "autorecompute", "run", "bert", "--", *command],
            cwd=tmp_path, env={**os.environ, **variables}, capture_output=True, text=True, check=True,
        )  # fmt: skip

    hooks = run(dataclasses.replace(answer, wrap=True)).stdout
    assert "wrapping:install" in hooks
    again = run(answer, **{HOOKS_VARIABLE: hooks.strip()})
    assert "wrapping:install" not in again.stdout
    assert HOOKS_VARIABLE in again.stderr
