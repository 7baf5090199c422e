import itertools
import math
import re
import sys
from dataclasses import dataclass

import pytest

from autorecompute.errors import ScriptError
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort
from workplace import SCRIPTS

BATCH = 6
"""What every script is told to give; its own batch is 4 or 8."""

EFFORT = Effort(warmup=1, steps=6)
"""Three measurements of it go beyond an epoch or an evaluation of each script."""

FORWARDS = {
    "accelerated.py": 2,
    "accumulating.py": 3,
    "adversarial.py": 1,  # of the generator: only the model that is tuned is counted
    "closures.py --optimizer lbfgs": 3,
    "closures.py --optimizer sgd": 1,
    "evaluating.py": 1,
    "hf_trainer.py": 2,
    "lightning_trainer.py": 1,
    "mixed_precision.py": 1,
    "submodule.py": 1,
}
"""Training forwards in a step of each script."""


@dataclass(frozen=True)
class Measured:
    command: str
    trials: list
    outputs: list
    check: object
    confirmed: object
    starts: int

    @property
    def lines(self):
        return "".join(self.outputs).splitlines()


def assert_all_steps_timed(measurement):
    assert len(measurement.step_seconds) == EFFORT.steps
    assert min(measurement.step_seconds) > 1e-4


def assert_agrees(check):
    assert isinstance(check, GradientCheck), check
    assert check.agrees, check


def make_bench(command, folder, launcher=""):
    script, *arguments = command.split()
    job = Job(script=SCRIPTS / script, arguments=tuple(arguments), launcher=launcher)
    return Bench(job, BATCH, folder)


@pytest.fixture(scope="module")
def measure(tmp_path_factory):
    known = {}

    def measure(command, launcher=""):
        if (command, launcher) not in known:
            folder = tmp_path_factory.mktemp("script")
            with pytest.MonkeyPatch.context() as patch, make_bench(command, folder, launcher) as bench:
                patch.chdir(folder)
                known[command, launcher] = measure_on(bench, command)
        return known[command, launcher]

    return measure


def measure_on(bench, command):
    all_on = bench.detect().space.all_on
    trials, outputs = [], []
    for config in (Config(), all_on, Config()):
        trials.append(bench.measure(config, EFFORT))
        outputs.append(bench.take_output())
    check, starts = bench.check(all_on), bench.starts
    return Measured(command, trials, outputs, check, bench.watch({}, EFFORT, BATCH), starts)


@pytest.fixture(scope="module", params=FORWARDS)
def measured(request, measure):
    return measure(request.param)


def test_configs_are_swapped_on_one_worker_and_a_fresh_process_is_measured_untouched(measured):
    every = (*measured.trials, measured.confirmed)
    assert [(trial.outcome, trial.message) for trial in every] == [(Outcome.OK, "")] * 4
    assert measured.starts == 1


def test_a_step_has_a_loss_and_the_samples_of_all_its_forwards(measured):
    for measurement in (*measured.trials, measured.confirmed):
        assert measurement.batch == BATCH
        assert measurement.samples == FORWARDS[measured.command] * BATCH
        assert_all_steps_timed(measurement)
        assert len(measurement.losses) == EFFORT.steps
        assert all(0 < loss < math.inf for loss in measurement.losses)


def test_gradients_are_those_without_recompute(measured):
    assert_agrees(measured.check)


def test_each_rank_receives_the_batch(measure):
    launcher = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    measured = measure("accelerated.py", launcher)
    for measurement in (*measured.trials, measured.confirmed):
        assert (measurement.outcome, measurement.message) == (Outcome.OK, "")
        assert (measurement.batch, measurement.samples) == (BATCH, 2 * FORWARDS["accelerated.py"] * BATCH)
        assert_all_steps_timed(measurement)
    assert_agrees(measured.check)


@pytest.mark.parametrize(("script", "before", "each"), [("evaluating.py", 0, 2), ("lightning_trainer.py", 2, 3)])
def test_no_config_is_swapped_within_an_evaluation(measure, script, before, each):
    measured = measure(script)
    evaluated = 0
    for output in measured.outputs:
        evaluated += len(re.findall(r"^evaluate ", output, re.MULTILINE))
        assert (evaluated - before) % each == 0
    assert evaluated > before


def test_steps_that_a_grad_scaler_skips_do_not_count(measure):
    measured = measure("mixed_precision.py")
    scales = [float(line.removeprefix("scale ")) for line in measured.lines if line.startswith("scale ")]
    skipped = sum(later < earlier for earlier, later in itertools.pairwise(scales))
    assert skipped > 3
    # The line of the last step comes after the config has been swapped; the first step warms up beyond what was asked.
    assert len(scales) - skipped >= 3 * (EFFORT.warmup + EFFORT.steps)


def test_an_optimizer_may_call_the_model_several_times(measure):
    words = [line.split()[0] for line in measure("closures.py --optimizer lbfgs").lines if line.startswith(("f", "s"))]
    assert words.count("forward") == 3 * (words.count("step") + 1)
    assert words.count("step") + 1 == 3 * (EFFORT.warmup + EFFORT.steps) + 2


def test_a_number_type_that_ort_cannot_train_in_is_told(tmp_path):
    with make_bench("mixed_precision.py --dtype bfloat16", tmp_path) as bench, pytest.raises(ScriptError) as failed:
        bench.detect()
    assert "ORTModule cannot take this model: it has no bfloat16 on this device for Gemm" in str(failed.value)
    assert "float16" in str(failed.value)
