import tempfile

import pytest

from autorecompute.backends.torch.controller import render
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.studies.folder import write_files
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from autorecompute.trials.private import compiled_code_of

EFFORT = Effort(warmup=1, steps=2)
NONE, BUDGET, BLOCKS = Config(), Config.parse(["graph:budget_0.5"]), Config.parse(["*:checkpoint"])


@pytest.fixture(scope="module")
def bench(scripts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    with Bench(Job(script=scripts / "compiled.py", backend="torch"), None, folder) as bench:
        yield bench


@pytest.fixture(scope="module")
def measured(bench):
    return [bench.measure(config, EFFORT) for config in (NONE, BUDGET, BLOCKS, NONE)]


def test_compiled_code_holds_less_under_a_budget(measured):
    none, budget, blocks, again = measured
    assert {one.outcome for one in measured} == {Outcome.OK}
    assert budget.allocated_bytes < none.allocated_bytes
    assert blocks.allocated_bytes < none.allocated_bytes
    assert again.allocated_bytes == pytest.approx(none.allocated_bytes, rel=0.01)
    assert again.held_bytes <= none.held_bytes


def test_compilations_are_told_and_not_timed(measured):
    assert all(one.compile_seconds > 0 for one in measured)
    assert measured[0].warmup_seconds > measured[0].compile_seconds
    assert all(min(one.step_seconds) < one.compile_seconds for one in measured)


def test_the_next_process_of_a_study_finds_what_was_compiled(scripts, tmp_path, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def compiled_by_a_process():
        job = Job(script=scripts / "compiled.py", backend="torch")
        with Bench(job, None, tmp_path, study=tmp_path / "one") as bench:
            assert bench.measure(BLOCKS, EFFORT).outcome is Outcome.OK
        return {file: file.stat().st_mtime_ns for file in compiled_code_of(tmp_path / "one").rglob("*.so")}

    first = compiled_by_a_process()
    assert first
    assert compiled_by_a_process() == first


@pytest.mark.parametrize("config", [BUDGET, BLOCKS])
def test_what_is_given_out_trains_the_script(bench, measured, tmp_path, config):
    assert measured
    emitted = render(config, versions=bench.detect().versions, folder=tmp_path)
    write_files(emitted.files)
    watched = bench.watch(emitted.variables, EFFORT, None)
    assert watched.outcome is Outcome.OK, watched.message
    assert watched.compile_seconds > 0


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
