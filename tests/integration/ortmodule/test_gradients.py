import json

import pytest

from autorecompute.backends.common import TOLERANCES
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

EFFORT = Effort(warmup=1, steps=2)


@pytest.fixture(scope="module")
def trained(make_workplace):
    trained = make_workplace("gradients").train("checked_gradients.py")
    assert trained.code == 0, trained.stderr
    return trained


@pytest.fixture(scope="module")
def checks(trained):
    return [json.loads(line) for line in trained.stdout.splitlines() if line.startswith("{")]


def test_recompute_gives_the_same_bits(checks):
    assert len(checks) > 3
    assert {check["worst"] for check in checks} == {0.0}


def test_the_first_comparison_draws_the_same_noise_twice(trained):
    assert "noisy 0.0" in trained.stdout.splitlines()


def test_masks_out_of_step_are_seen(checks):
    dropouts = [check for check in checks if any("Dropout" in plan for plan in check["plans"])]
    assert dropouts
    for check in dropouts:
        assert check["out_of_step"] > 3 * max(TOLERANCES.values())


def test_a_call_that_cannot_be_cut_is_compared_as_it_is(scripts, tmp_path):
    with Bench(Job(script=scripts / "odd_models.py", arguments=("--model", "sequence-first")), None, tmp_path) as bench:
        plans = bench.detect().space.plans
        bench.measure(Config(), EFFORT)
        check = bench.check(Config.of(plans[:1]))
    assert check.agrees
    assert check.steps > 1


@pytest.fixture(scope="module")
def forgetful(scripts, tmp_path_factory):
    job = Job(script=scripts / "transformer.py", arguments=("--dropout", "0.1", "--forget"))
    with Bench(job, None, tmp_path_factory.mktemp("forgetful")) as bench:
        yield bench


def test_a_training_forward_without_a_backward_is_warned_about(forgetful, scripts):
    (warning,) = forgetful.measure(Config(), EFFORT).warnings
    lines = (scripts / "plain_transformer.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if text.strip() == "model(inputs)")
    assert f"plain_transformer.py:{line}: a forward in training mode has no backward" in warning


def test_dropout_is_not_recomputed_for_such_a_script(forgetful):
    plans = forgetful.detect().space.plans
    forgetful.measure(Config(), EFFORT)
    agrees = {plan.label: forgetful.check(Config.of([plan])).agrees for plan in plans}
    assert agrees == {plan.label: "Dropout" not in plan.label for plan in plans}
