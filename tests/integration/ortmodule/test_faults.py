"""Scripts whose model ORTModule never gets, cannot train, or runs out of memory with."""

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort


@pytest.mark.parametrize("way", ["plain-briefly", "plain"])
def test_a_script_that_never_wraps_its_model_is_told_how_at_its_end_or_before(workplace, way):
    failed = workplace.tune("elsewhere.py", "--backend", "ortmodule", arguments=("--way", way))
    assert failed.code == 5
    assert "ORTModule(model)" in failed.complaint
    assert "leave out --backend" in failed.complaint
    assert "It printed nothing." in failed.complaint
    assert workplace.study().logs == [""]


def test_a_script_that_insists_on_falling_back_is_not_measured_in_plain_pytorch(workplace):
    failed = workplace.tune("odd_models.py", arguments=("--model", "lgamma", "--fall-back"))
    assert failed.code == 5
    sentence = failed.complaint.splitlines()[0]
    assert "nothing is recomputed" in sentence
    assert "lgamma" in sentence
    assert "Outcome: fell_back." in failed.complaint


def test_memory_that_runs_out_in_an_ortmodule_is_told_though_the_script_goes_on(tmp_path, scripts):
    """ORT's own error is caught by the loop, and the trial has it before."""
    arguments = ("--fault", "exhaust", "--at-step", "2", "--goes-on")
    with Bench(Job(script=scripts / "breaking.py", arguments=arguments), None, tmp_path) as broken:
        assert broken.measure(Config(), Effort(warmup=1, steps=2)).outcome is Outcome.OOM
