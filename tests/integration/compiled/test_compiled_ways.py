from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

EFFORT = Effort(warmup=1, steps=2)


def test_blocks_that_are_compiled_one_by_one_are_measured(scripts, tmp_path):
    job = Job(script=scripts / "compiled.py", arguments=("--by-blocks",), backend="torch")
    with Bench(job, None, tmp_path) as bench:
        detection = bench.detect()
        assert detection.extra["compiled_peaks"]
        measured = [bench.measure(Config.parse(texts), EFFORT) for texts in ([], ["*:checkpoint"], ["*:checkpoint:1"])]
    assert {one.outcome for one in measured} == {Outcome.OK}
    assert max(one.allocated_bytes for one in measured[1:]) < measured[0].allocated_bytes


def test_batches_of_every_length_are_measured(scripts, tmp_path):
    job = Job(script=scripts / "compiled.py", arguments=("--ragged",), backend="torch")
    with Bench(job, None, tmp_path) as bench:
        measured = bench.measure(Config.parse(["*:checkpoint"]), EFFORT)
    assert measured.outcome is Outcome.OK
    assert max(measured.step_seconds) < measured.compile_seconds


def test_a_model_that_the_trainer_compiles_is_found(scripts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = Job(script=scripts / "language_model.py", arguments=("--way", "trainer", "--compiled"), backend="torch")
    with Bench(job, None, tmp_path) as bench:
        detection = bench.detect()
    assert detection.versions["model"].endswith("compiled")
    plans = {plan.id for plan in detection.plans}
    assert "transformer.h.*:checkpoint" in plans
    assert any(text.startswith("graph:budget_") for text in plans)
