from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

EFFORT = Effort(warmup=1, steps=2)


def test_a_call_that_cannot_be_cut_is_compared_as_it_is(scripts, tmp_path):
    with Bench(Job(script=scripts / "odd_models.py", arguments=("--model", "sequence-first")), None, tmp_path) as bench:
        plans = bench.detect().space.plans
        bench.measure(Config(), EFFORT)
        check = bench.check(Config.of(plans[:1]))
    assert check.agrees
    assert check.steps > 1


def test_a_training_forward_without_a_backward_is_warned_about_and_dropout_not_recomputed(scripts, tmp_path):
    """It puts the two random streams of a Dropout out of step."""
    job = Job(script=scripts / "transformer.py", arguments=("--dropout", "0.1", "--forget"))
    with Bench(job, None, tmp_path) as bench:
        plans = bench.detect().space.plans
        (warning,) = bench.measure(Config(), EFFORT).warnings
        agrees = {plan.label: bench.check(Config.of([plan])).agrees for plan in plans}
    lines = (scripts / "plain_transformer.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(lines) if text.strip() == "model(inputs)")
    assert f"plain_transformer.py:{line}: a forward in training mode has no backward" in warning
    assert agrees == {plan.label: "Dropout" not in plan.label for plan in plans}
