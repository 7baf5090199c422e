import json
import sys
from dataclasses import replace

import pytest

from autorecompute.backends import registry
from autorecompute.backends.torch.forecast.records import CHUNK
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench
from autorecompute.trials.job import Effort
from training_scripts import STAND_IN, WITH_A_FLAG, WITH_A_LOADER, job_of

RETURNING_A_LOSS = (
    "kinds.py --model t5",
    "libraries.py --model mixtral",
    "libraries.py --model peft",
    "plain_bert.py",
    "many_kinds.py",
)
BATCH = 6
EFFORT = Effort(warmup=1, steps=2)


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=":")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return lambda command, launcher="": Bench(job_of(command, launcher), BATCH, tmp_path)


def emitted(config, detection, folder):
    rendered = registry.render(config, (), detection.versions, folder)
    for file, text in rendered.files.items():
        file.write_text(text)
    return rendered.variables


@pytest.mark.parametrize("command", [*WITH_A_LOADER, *WITH_A_FLAG])
def test_a_script_is_measured_checked_and_confirmed(command, bench_of, tmp_path):
    with bench_of(command) as bench:
        detection = bench.detect()
        all_on = detection.space.all_on
        trials = [bench.measure(config, EFFORT) for config in (Config(), all_on, Config())]
        assert [(trial.outcome, trial.message) for trial in trials] == [(Outcome.OK, "")] * 3
        half = bench.measure(Config(), replace(EFFORT, batch=BATCH // 2))
        whole = bench.measure(all_on, EFFORT)
        check = bench.check(all_on)
        # A loss in chunks changes the order of a sum, and nothing else does.
        exact = Config(frozenset(choice for choice in all_on.choices if choice.option != CHUNK))
        exactly = bench.check(exact) if exact != all_on else check
        confirmed = bench.watch(emitted(all_on, detection, tmp_path), EFFORT, BATCH)
        assert bench.starts == 2
    # Without a DataLoader the model gets another batch only where it returns its loss: a part of the script's own.
    has_another = command in (*WITH_A_LOADER, *RETURNING_A_LOSS) or command.startswith("plain_transformer.py")
    assert half.outcome is (Outcome.OK if has_another else Outcome.WRONG_BATCH), half.message
    assert (half.batch, whole.outcome, whole.batch) == (BATCH // 2 if has_another else None, Outcome.OK, BATCH)
    assert detection.plans
    assert (check.agrees, check.steps) == (True, 2)
    assert (exactly.agrees, exactly.worst, exactly.steps) == (True, 0.0, 2)
    assert (confirmed.outcome, confirmed.message) == (Outcome.OK, "")
    told = "batches have a sequence of 9 to 16: peaks hold up to the largest that was measured"
    varied = f"{told}; tune --longest makes sure of the longest"
    assert (varied in trials[-1].warnings) == command.endswith("--varied")
    if command.startswith(("kinds.py", "libraries.py", "many_kinds.py")) and not command.endswith(
        ("--varied", "experts", "mixtral")
    ):  # these differ from step to step
        plain, least, again = (trial.allocated_bytes for trial in trials)
        assert least < plain == again


def test_ranks_switch_together(bench_of):
    launcher = f"{sys.executable} -m torch.distributed.run --nproc-per-node 2"
    with bench_of("counted_ranks.py --way replicas", launcher) as bench:
        detection, _ = bench.detect_ranks()
        configs = [Config(), detection.space.all_on, detection.space.presets["operators"], Config()]
        plain, least, operators, again = (bench.measure(config, EFFORT) for config in configs)
        check = bench.check(detection.space.all_on)
    assert least.allocated_bytes < operators.allocated_bytes < plain.allocated_bytes == again.allocated_bytes
    assert plain.samples == 2 * BATCH
    assert (check.agrees, check.worst, check.steps) == (True, 0.0, 2)


def test_plans_that_were_measured_in_the_place_of_the_scripts_own_checkpoints_say_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(STAND_IN), prepend=":")
    job = replace(job_of("odd_models.py --model checkpointed"), replaces_checkpointing=True)
    with Bench(job, None, tmp_path) as bench:
        detection = bench.detect()
    assert any(choice.site.startswith("layers.") for plan in detection.plans for choice in plan.choices)
    ((_, text),) = registry.render(Config(), (), detection.versions, tmp_path).files.items()
    assert json.loads(text)["replaces_checkpointing"] is True
