import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from autorecompute.backends import registry
from autorecompute.errors import ScriptError, SetupError, UsageError
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.training_job import ALLOCATOR_VARIABLES, GIVING_BACK, GROWING
from autorecompute.trials import Bench, bench
from autorecompute.trials.job import Effort, mixed_lengths
from autorecompute.trials.private import cache_variables
from autorecompute.units import GIB
from warm import start_server

EFFORT = Effort(warmup=2, steps=3)
CHOICES = ["blocks.*/gelu:drop"]
TRIAL_VARIABLES = registry.trial_variables(registry.AUTO)
CONFIG = Config.parse(CHOICES)


@pytest.fixture(scope="module", autouse=True)
def _warm():
    """Workers are forked from a process that has imported what they need: how they start is tested elsewhere."""
    needed = ("autorecompute.codec", "autorecompute.training_job", "autorecompute.worker.protocol")
    with (
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        start_server(Path(folder), needed) as python,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "executable", str(python))
        yield


@pytest.fixture
def make_bench(make_job, tmp_path):
    benches = []

    def make(actions, *, batch=None, study=None, limit_bytes=None, **fields):
        logs = tmp_path / "logs"
        logs.mkdir(exist_ok=True)
        benches.append(Bench(make_job(actions, **fields), batch, logs, study=study, limit_bytes=limit_bytes))
        return benches[-1]

    yield make
    for made in benches:
        made.close()


def seen(measurement):
    """What the worker was told, and under what it ran."""
    return json.loads(measurement.message)


def test_one_worker_detects_once_and_measures_all_configs_but_those_that_nothing_can_be_given(
    make_bench, make_detection
):
    measured = make_bench("detect forever")
    assert measured.detect() == measured.detect() == make_detection()
    first, second = measured.measure(Config(), EFFORT), measured.measure(CONFIG, Effort(warmup=1, steps=4))
    assert (seen(first)["choices"], seen(second)["choices"]) == ([], CHOICES)
    assert (first.warmup_seconds, len(first.step_seconds)) == (2, 3)
    assert (second.warmup_seconds, len(second.step_seconds)) == (1, 4)
    assert measured.starts == seen(second)["start"] == 1
    refused = measured.measure(Config.parse(["a\tb:drop"]), EFFORT)
    assert (refused.outcome, refused.message.endswith("Nothing was written.")) == (Outcome.SCRIPT_ERROR, True)
    assert seen(measured.measure(CONFIG, EFFORT))["start"] == measured.starts == 1


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(("then", "outcome"), [("passes:1.9 answer", Outcome.OK), ("hangs:2.1", Outcome.HANG)])
def test_a_slow_job_is_given_a_multiple_of_its_own_pace(make_bench, monkeypatch, then, outcome):
    """Its steps took 0.1 s, and may take 20 times as long."""
    monkeypatch.setattr(bench, "LEAST_STALL_SECONDS", 1.0)
    measured = make_bench(f"detect measure order {then}")
    measured.measure(Config(), EFFORT)
    assert measured.measure(CONFIG, EFFORT).outcome is outcome


@pytest.mark.usefixtures("clock")
def test_each_first_step_is_given_the_time_of_a_start_and_small_steps_do_not_tell_how_long_the_targets_take(make_bench):
    """What a step takes is not known yet."""
    steps = "passes:800 beat " * 4
    assert make_bench(f"detect order {steps} answer").measure(Config(), EFFORT).outcome is Outcome.OK
    assert make_bench(f"{steps} report").watch({}, EFFORT, 32).outcome is Outcome.OK
    assert make_bench("hangs:901").watch({}, EFFORT, 32).outcome is Outcome.HANG
    measured = make_bench("detect measure order passes:400 answer", batch=32)
    assert measured.measure(CONFIG, replace(EFFORT, batch=7)).outcome is Outcome.OK
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_script_that_has_started_before_is_started_twice(make_bench):
    """A file system that is late for a moment ends no tuning of hours."""
    measured = make_bench("detect measure signal:SIGSEGV then failed:script_error:no_file then detect forever")
    measured.measure(Config(), EFFORT)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.CRASH
    assert seen(measured.measure(CONFIG, EFFORT))["start"] == 3
    with pytest.raises(ScriptError, match="no_file"):
        make_bench("failed:script_error:no_file").detect()


def test_a_script_that_is_shorter_than_a_trial_when_it_is_started_again_is_the_scripts_fault(make_bench):
    measured = make_bench("detect measure order ended:9:0 then detect order ended:4:0")
    measured.measure(Config(), EFFORT)
    with pytest.raises(ScriptError, match=r"ended after 4 steps; a trial needs at least 6\..*--steps"):
        measured.measure(CONFIG, EFFORT)
    assert measured.starts == 2


@pytest.mark.parametrize("steps", ["ended:40:0", "order ended:40:0"])
def test_a_script_that_ends_is_started_again(make_bench, steps):
    measured = make_bench(f"detect measure measure {steps} then detect forever")
    measured.measure(Config(), EFFORT)
    measured.measure(Config(), EFFORT)
    again = measured.measure(CONFIG, EFFORT)
    assert (again.outcome, seen(again)["start"], seen(again)["choices"]) == (Outcome.OK, 2, CHOICES)


@pytest.mark.parametrize(
    ("actions", "kind", "words"),
    [
        ("refused:no_torch", SetupError, "no_torch"),
        ("failed:wrong_batch:a_batch_of_3", UsageError, "a_batch_of_3"),
        ("print:said failed:script_error:ValueError", ScriptError, "ValueError(.|\n)*line 1 of train.py(.|\n)*01.log"),
        ("failed:export_error:no_operator", ScriptError, "no_operator"),
        ("ended:0:0", ScriptError, "ended before it trained.*It printed nothing"),
        ("ended:0:3", ScriptError, "exit code 3"),
        ("signal:SIGSEGV", ScriptError, "SIGSEGV"),
    ],
)
def test_a_start_that_fails_ends_the_tuning_by_its_cause(make_bench, is_gone, actions, kind, words):
    measured = make_bench(actions)
    with pytest.raises(kind, match=words):
        measured.detect()
    assert is_gone()


TORCHS, GLIBCS = {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64"}, {"MALLOC_MMAP_THRESHOLD_": "65536"}


@pytest.mark.parametrize(
    ("own", "seen_by_all"),
    [({}, {**GROWING, **GIVING_BACK}), (TORCHS, {**TORCHS, **GIVING_BACK}), (GLIBCS, {**GROWING, **GLIBCS})],
)
def test_allocators_hold_little_beyond_tensors_unless_the_user_told_them_anything(
    make_bench, monkeypatch, own, seen_by_all
):
    names = (*ALLOCATOR_VARIABLES, *GIVING_BACK)
    for name in names:
        monkeypatch.delenv(name, raising=False)
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    measured = make_bench("detect forever then report")
    trial, watched = seen(measured.measure(CONFIG, EFFORT)), seen(measured.watch({}, EFFORT, 16))
    for process in (trial, watched):
        assert {name: value for name, value in process["environment"].items() if name in names} == seen_by_all


def test_processes_of_a_study_share_what_they_compile(make_bench, tmp_path, monkeypatch):
    for name in registry.gather("CACHE_VARIABLES"):
        monkeypatch.delenv(name, raising=False)
    measured = make_bench("detect forever then report", study=tmp_path)
    trial = seen(measured.measure(CONFIG, EFFORT))["environment"]
    watched = seen(measured.watch({}, EFFORT, 16))["environment"]
    expected = cache_variables(tmp_path, {})
    assert expected
    assert expected.items() <= trial.items()
    assert expected.items() <= watched.items()


@pytest.mark.parametrize(
    ("batch", "flag", "is_told", "can_change"),
    [(32, None, True, True), (32, "--bs", False, False), (None, None, True, False)],
)
def test_the_loader_is_told_the_batch_only_where_the_script_is_not(make_bench, batch, flag, is_told, can_change):
    """It can be changed where there is a target to go back to."""
    # The fake worker takes the flag and its value for two more actions, which it never reaches.
    measured = make_bench("detect forever", batch=batch, batch_flag=flag)
    settings = seen(measured.measure(CONFIG, EFFORT))["settings"]
    assert (settings["target_batch"], settings["override_loader"], settings["watch"]) == (batch, is_told, None)
    assert settings["limit_bytes"] is None
    assert measured.can_change_batch is can_change


def test_a_window_at_another_batch_is_followed_by_one_at_the_target_at_which_a_new_worker_is_started(make_bench):
    measured = make_bench("detect forever", batch=32)
    efforts = (EFFORT, replace(EFFORT, batch=7), EFFORT)
    assert [seen(measured.measure(CONFIG, effort))["batch"] for effort in efforts] == [32, 7, 32]
    assert measured.starts == 1
    measured = make_bench("detect measure order ended:9:0 then detect forever", batch=32)
    measured.measure(CONFIG, EFFORT)
    again = seen(measured.measure(CONFIG, replace(EFFORT, batch=7)))
    assert (again["start"], again["settings"]["target_batch"], again["batch"]) == (2, 32, 7)


def test_a_watched_run_is_the_users_own_and_neither_inherits_what_decides_about_recompute(
    make_bench, monkeypatch, is_gone
):
    monkeypatch.setenv("MINE", "2")
    for name in registry.variables():
        monkeypatch.setenv(name, "left over")
    for name in TRIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    measured = make_bench("detect forever then report", batch=32, limit_bytes=8 * GIB)
    tried, watched = seen(measured.measure(CONFIG, EFFORT)), seen(measured.watch({"CHOSEN": "1"}, EFFORT, 16))
    assert (tried["settings"]["limit_bytes"], watched["settings"]["limit_bytes"]) == (None, 8 * GIB)
    assert not {*registry.variables()} & tried["environment"].keys()
    assert {"MINE": "2", **TRIAL_VARIABLES}.items() <= tried["environment"].items()
    assert is_gone("pid1")
    assert watched["start"] == 2
    assert watched["environment"]["CHOSEN"] == "1"
    assert not {*registry.variables(), *TRIAL_VARIABLES} & set(watched["environment"])
    assert watched["settings"]["target_batch"] == 16
    assert (watched["settings"]["watch"]["warmup"], watched["settings"]["watch"]["steps"]) == (2, 3)
    assert is_gone()


@pytest.mark.parametrize(
    ("actions", "outcome"),
    [("signal:SIGSEGV", Outcome.CRASH), ("ended:3:0", Outcome.SCRIPT_ERROR), ("failed:oom:no", Outcome.OOM)],
)
def test_a_watched_run_that_fails_is_a_measurement_too(make_bench, actions, outcome):
    measured = make_bench(f"{actions} then detect forever")
    assert measured.watch({}, EFFORT, None).outcome is outcome
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_worker_beside_which_memory_ran_out_measures_on_and_is_looked_at_once_for_each_config(make_bench):
    measured = make_bench("detect lacks_memory forever")
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OOM
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK
    assert measured.starts == 1
    measured = make_bench("detect forever")
    assert measured.whole_step(CONFIG) is None
    measured.measure(CONFIG, EFFORT)
    assert [measured.whole_step(config).step_bytes for config in (CONFIG, Config(), CONFIG)] == [200, 300, 200]
    assert measured.starts == 1


@pytest.mark.parametrize(
    ("actions", "start"),
    [("detect forever", 1), ("detect measure order ended:9:0 then detect forever", 2)],
    ids=["that measured", "after the script has ended"],
)
def test_gradients_are_checked_on_a_worker(make_bench, actions, start):
    measured = make_bench(actions)
    measured.measure(CONFIG, EFFORT)
    checked = seen(measured.check(CONFIG))
    assert (checked["start"], checked["choices"]) == (start, CHOICES)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_check_says_how_it_breaks_its_worker_and_needs_no_run_without_recompute(make_bench):
    measured = make_bench(
        "detect measure order signal:SIGSEGV then detect measure order signal:SIGSEGV then detect forever"
    )
    measured.measure(CONFIG, EFFORT)
    assert measured.check(CONFIG).outcome is Outcome.CRASH
    measured.measure(CONFIG, EFFORT)
    assert measured.whole_step(CONFIG) is None
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK
    measured = make_bench("detect needs_recompute")
    assert isinstance(measured.check(CONFIG), GradientCheck)


def test_output_is_given_out_once(make_bench):
    """The last words of a worker that dies, and a new worker's output from its beginning."""
    measured = make_bench(
        "print:one detect measure order print:two answer ended:9:0 then "
        "print:three detect measure order print:alas signal:SIGKILL"
    )
    assert measured.take_output() == ""
    for printed in ("one\n", "two\n", "three\n", "alas\n"):
        measured.measure(CONFIG, EFFORT)
        assert measured.take_output() == printed
        assert measured.take_output() == ""


@pytest.mark.parametrize(
    ("known", "longest", "mixed"),
    [
        ((16, 32, 64, 96), 128, (112, 80, 48, 16, 96, 64, 32)),
        ((12, 25, 50, 75), 100, (90, 70, 50, 30, 10, 80, 60, 40, 20)),
        ((512, 1024, 2048, 3072), 4096, (3584, 2560, 1536, 512, 3072, 2048, 1024)),
        ((8,), 16, (8,)),
    ],
)
def test_mixed_lengths_are_multiples_of_what_known_ones_share(known, longest, mixed):
    assert mixed_lengths(known, longest) == mixed
