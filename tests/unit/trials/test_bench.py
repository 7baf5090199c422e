"""Measuring on live workers that die, hang and end too early."""

import json
from dataclasses import replace

import pytest

from autorecompute.backends import registry
from autorecompute.errors import ScriptError, SetupError, UsageError
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, bench, endings, process
from autorecompute.trials.caches import cache_variables
from autorecompute.trials.effort import Effort

EFFORT = Effort(warmup=2, steps=3)
CHOICES = ["blocks.*/gelu:drop"]
TRIAL_VARIABLES = registry.trial_variables(registry.AUTO)
CONFIG = Config.parse(CHOICES)


@pytest.fixture
def make_bench(make_job, tmp_path):
    """Builds a bench whose workers do what is said."""
    benches = []

    def make(actions, *, batch=None, study=None, **fields):
        logs = tmp_path / "logs"
        logs.mkdir(exist_ok=True)
        benches.append(Bench(make_job(actions, **fields), batch, logs, study=study))
        return benches[-1]

    yield make
    for made in benches:
        made.close()


def seen(measurement):
    """What the worker was told, and under what it ran."""
    return json.loads(measurement.message)


def test_one_worker_measures_config_after_config(make_bench):
    """Nothing is restarted between configs, and each order reaches the worker as it was given."""
    measured = make_bench("detect forever")
    first, second = measured.measure(Config(), EFFORT), measured.measure(CONFIG, Effort(warmup=1, steps=4))
    assert (seen(first)["choices"], seen(second)["choices"]) == ([], CHOICES)
    assert (first.warmup_seconds, len(first.step_seconds)) == (2, 3)
    assert (second.warmup_seconds, len(second.step_seconds)) == (1, 4)
    assert measured.starts == seen(second)["start"] == 1


def test_a_busy_host_is_marked_on_the_measurement(make_bench, monkeypatch):
    """What others did on the host meanwhile goes along with the figures."""
    monkeypatch.setattr(endings, "NEGLIGIBLE_SHARE", -1.0)
    (mark,) = make_bench("detect forever").measure(CONFIG, EFFORT).marks
    assert mark == "host busy: 5 % of the cores by others"


def test_detecting_twice_starts_once(make_bench, make_detection):
    """What was detected is remembered while its worker lives."""
    measured = make_bench("detect forever")
    assert measured.detect() == measured.detect() == make_detection()
    assert measured.starts == 1


@pytest.mark.parametrize(
    ("end", "outcome", "words"),
    [
        ("order signal:SIGKILL", Outcome.LOST, "from outside"),
        ("order signal:SIGSEGV", Outcome.CRASH, "SIGSEGV"),
        ("order failed:oom:no_room", Outcome.OOM, "no_room"),
        ("order failed:wrong_batch:a_batch_of_3", Outcome.WRONG_BATCH, "a_batch_of_3"),
        ("order exit:3", Outcome.SCRIPT_ERROR, "exit code 3"),
        ("order ended:9:1", Outcome.SCRIPT_ERROR, "exit code 1"),
        ("order detect", Outcome.CRASH, "a Detection"),
    ],
)
def test_a_worker_that_breaks_costs_one_trial(make_bench, end, outcome, words):
    """The trial in progress tells what happened, and the next one runs on a new worker."""
    measured = make_bench(f"detect measure {end} then detect forever")
    assert measured.measure(Config(), EFFORT).outcome is Outcome.OK
    broken = measured.measure(CONFIG, EFFORT)
    assert broken.outcome is outcome
    assert words in broken.message
    assert not broken.step_seconds
    assert seen(measured.measure(CONFIG, EFFORT))["start"] == 2


def test_a_config_that_nothing_can_be_given_is_not_tried(make_bench):
    """What the training system cannot be told to recompute fails at once, by itself, and costs no worker."""
    measured = make_bench("detect forever")
    assert measured.measure(Config(), EFFORT).outcome is Outcome.OK
    refused = measured.measure(Config.parse(["a\tb:drop"]), EFFORT)
    assert (refused.outcome, refused.message.endswith("Nothing was written.")) == (Outcome.SCRIPT_ERROR, True)
    assert seen(measured.measure(CONFIG, EFFORT))["start"] == measured.starts == 1


def test_a_worker_that_hangs_costs_one_trial(make_bench, monkeypatch, is_gone):
    """A silent trial ends as a hang, its processes with it, and the next one runs on a new worker."""
    monkeypatch.setattr(bench, "LEAST_STALL_SECONDS", 0.5)
    monkeypatch.setattr(bench, "SLOWDOWN", 0.1)
    monkeypatch.setattr(process, "STACK_SECONDS", 0.1)
    measured = make_bench("child detect measure order sleep:600 then detect forever")
    measured.measure(Config(), EFFORT)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.HANG
    assert is_gone("pid1")
    assert is_gone("child")
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_slow_job_is_given_its_time(make_bench, monkeypatch):
    """A trial may take many times what its steps take at the job's own pace."""
    monkeypatch.setattr(bench, "LEAST_STALL_SECONDS", 0.1)
    measured = make_bench("detect measure sleep:0.5 forever")
    measured.measure(Config(), EFFORT)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_each_first_step_is_given_the_time_of_a_start(make_bench, monkeypatch):
    """However many there are: what a step takes is not known yet. One that takes longer is a hang."""
    monkeypatch.setattr(bench, "START_TIMEOUT_SECONDS", 2.0)
    steps = " ".join(["beat:0.8"] * 4)
    measured = make_bench(f"detect order {steps} answer forever")
    assert measured.measure(Config(), EFFORT).outcome is Outcome.OK
    assert make_bench(f"{steps} report").watch({}, EFFORT, 32).outcome is Outcome.OK
    assert make_bench("sleep:600").watch({}, EFFORT, 32).outcome is Outcome.HANG


def test_a_script_that_has_started_before_is_started_twice(make_bench):
    """A file system that is late for a moment ends no tuning of hours; a script that never starts is the user's."""
    measured = make_bench("detect measure signal:SIGSEGV then failed:script_error:no_file then detect forever")
    measured.measure(Config(), EFFORT)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.CRASH
    assert seen(measured.measure(CONFIG, EFFORT))["start"] == 3
    with pytest.raises(ScriptError, match="no_file"):
        make_bench("failed:script_error:no_file").detect()


@pytest.mark.parametrize("steps", ["ended:40:0", "order ended:40:0"])
def test_a_script_that_ends_is_started_again(make_bench, steps):
    """A config whose worker came to its script's end is measured on the next one, as if nothing had been."""
    measured = make_bench(f"detect measure measure {steps} then detect forever")
    measured.measure(Config(), EFFORT)
    measured.measure(Config(), EFFORT)
    again = measured.measure(CONFIG, EFFORT)
    assert (again.outcome, seen(again)["start"], seen(again)["choices"]) == (Outcome.OK, 2, CHOICES)


def test_a_script_shorter_than_a_trial_is_the_scripts_fault(make_bench):
    """A script that ends before its first measurement is told how many steps a trial needs."""
    measured = make_bench("detect order ended:4:0")
    with pytest.raises(ScriptError, match=r"ended after 4 steps; a trial needs at least 6\..*--steps"):
        measured.measure(CONFIG, EFFORT)
    assert measured.starts == 1


def test_a_script_that_ends_again_at_once_is_the_scripts_fault(make_bench):
    """A script that ended once is not started for ever."""
    measured = make_bench("detect measure order ended:9:0 then detect order ended:4:0")
    measured.measure(Config(), EFFORT)
    with pytest.raises(ScriptError, match="a trial needs at least 6"):
        measured.measure(CONFIG, EFFORT)
    assert measured.starts == 2


@pytest.mark.parametrize(
    ("actions", "kind", "words"),
    [
        ("refused:no_torch", SetupError, "no_torch"),
        ("failed:wrong_batch:a_batch_of_3", UsageError, "a_batch_of_3"),
        ("print:said failed:script_error:ValueError", ScriptError, "ValueError(.|\n)*line 1 of train.py(.|\n)*01.log"),
        ("failed:script_error:ValueError", ScriptError, "ValueError(.|\n)*line 1 of train.py(.|\n)*It printed nothing"),
        ("failed:export_error:no_operator", ScriptError, "no_operator"),
        ("print:said ended:0:0", ScriptError, "ended before it trained.*01.log"),
        ("ended:0:0", ScriptError, "ended before it trained.*It printed nothing"),
        ("ended:0:3", ScriptError, "exit code 3"),
        ("signal:SIGSEGV", ScriptError, "SIGSEGV"),
    ],
)
def test_a_start_that_fails_ends_the_tuning_by_its_cause(make_bench, is_gone, actions, kind, words):
    """Installation, usage and script are told apart, and no process stays."""
    measured = make_bench(actions)
    with pytest.raises(kind, match=words):
        measured.detect()
    assert is_gone()


def test_a_trial_does_not_inherit_what_decides_about_recompute(make_bench, monkeypatch):
    """What decides about recompute is gone, the rest of the environment is there, and the trial's own are set."""
    for name in registry.variables():
        monkeypatch.setenv(name, "left over")
    monkeypatch.setenv("MINE", "2")
    environment = seen(make_bench("detect forever").measure(CONFIG, EFFORT))["environment"]
    assert not {*registry.variables()} & environment.keys()
    assert {"MINE": "2", **TRIAL_VARIABLES}.items() <= environment.items()


def test_processes_of_a_study_share_what_they_compile(make_bench, tmp_path, monkeypatch):
    """Those that measure and those that confirm, in the folder that the study has for it."""
    for name in registry.cache_variables():
        monkeypatch.delenv(name, raising=False)
    measured = make_bench("detect forever then report", study=tmp_path)
    trial = seen(measured.measure(CONFIG, EFFORT))["environment"]
    watched = seen(measured.watch({}, EFFORT, 16))["environment"]
    expected = cache_variables(tmp_path, {})
    assert expected
    assert expected.items() <= trial.items()
    assert expected.items() <= watched.items()


@pytest.mark.parametrize(("flag", "told"), [(None, True), ("--bs", False)])
def test_the_loader_is_told_the_batch_only_where_the_script_is_not(make_bench, flag, told):
    """A script that takes the batch is trusted; for another one the worker may change the DataLoader."""
    # The fake worker takes the flag and its value for two more actions, which it never reaches.
    measured = make_bench("detect forever", batch=32, batch_flag=flag)
    settings = seen(measured.measure(CONFIG, EFFORT))["settings"]
    assert (settings["target_batch"], settings["override_loader"], settings["watch"]) == (32, told, None)


@pytest.mark.parametrize(
    ("batch", "flag", "can"), [(32, None, True), (32, "--bs", False), (None, None, False)], ids=str
)
def test_the_batch_can_be_changed_where_the_loader_is_told_it(make_bench, batch, flag, can):
    """Not where the script's arguments have it, and not where there is no target to go back to."""
    assert make_bench("detect forever", batch=batch, batch_flag=flag).can_change_batch is can


def test_a_window_at_another_batch_is_followed_by_one_at_the_target(make_bench):
    """Each order names its batch: nobody has to remember what the last one was."""
    measured = make_bench("detect forever", batch=32)
    efforts = (EFFORT, replace(EFFORT, batch=7), EFFORT)
    assert [seen(measured.measure(CONFIG, effort))["batch"] for effort in efforts] == [32, 7, 32]
    assert measured.starts == 1


def test_a_worker_started_anew_is_told_the_batch_of_its_order(make_bench):
    """A script that ends in between is started at the target, and still measures at the batch that was ordered."""
    measured = make_bench("detect measure order ended:9:0 then detect forever", batch=32)
    measured.measure(CONFIG, EFFORT)
    again = seen(measured.measure(CONFIG, replace(EFFORT, batch=7)))
    assert (again["start"], again["settings"]["target_batch"], again["batch"]) == (2, 32, 7)


def test_small_steps_do_not_tell_how_long_the_targets_take(make_bench, monkeypatch):
    """A trial at the target may take many times a step of its own, however fast steps at a small batch were."""
    monkeypatch.setattr(bench, "LEAST_STALL_SECONDS", 0.5)
    monkeypatch.setattr(bench, "SLOWDOWN", 0.1)
    measured = make_bench("detect measure order sleep:1 answer forever", batch=32)
    assert measured.measure(CONFIG, replace(EFFORT, batch=7)).outcome is Outcome.OK
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_watched_run_is_the_users_own(make_bench, monkeypatch, is_gone):
    """A confirmation runs in a fresh process under nothing but its environment, and is told to measure only."""
    for name in registry.variables():
        monkeypatch.setenv(name, "left over")
    for name in TRIAL_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    measured = make_bench("detect forever then report", batch=32)
    measured.measure(CONFIG, EFFORT)
    watched = seen(measured.watch({"CHOSEN": "1"}, EFFORT, 16))
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
    """A confirmation that breaks says how, and the bench goes on."""
    measured = make_bench(f"{actions} then detect forever")
    assert measured.watch({}, EFFORT, None).outcome is outcome
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_watched_run_that_is_refused_is_the_installations_fault(make_bench):
    """What the installation does not allow is no measurement."""
    with pytest.raises(SetupError, match="no_torch"):
        make_bench("refused:no_torch").watch({}, EFFORT, None)


def test_gradients_are_checked_on_the_worker_that_measured(make_bench):
    """After a measurement a check needs no new worker, and names the config it is of."""
    measured = make_bench("detect forever")
    measured.measure(CONFIG, EFFORT)
    checked = seen(measured.check(CONFIG))
    assert (checked["start"], checked["choices"]) == (1, CHOICES)
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_gradients_can_be_checked_on_a_fresh_worker(make_bench):
    """Without a live worker one is started and brought to the point where gradients can be compared."""
    measured = make_bench("report then detect forever")
    measured.watch({}, EFFORT, None)
    assert seen(measured.check(CONFIG))["start"] == 2


def test_gradients_are_checked_where_the_batch_needs_recompute(make_bench):
    """A batch that does not run without recompute has its config checked all the same."""
    measured = make_bench("detect needs_recompute")
    assert isinstance(measured.check(CONFIG), GradientCheck)


def test_gradients_are_checked_after_a_script_has_ended(make_bench):
    """A script that comes to its end before the check is started again, as for a measurement."""
    measured = make_bench("detect measure order ended:9:0 then detect forever")
    measured.measure(CONFIG, EFFORT)
    assert isinstance(measured.check(CONFIG), GradientCheck)


def test_a_check_that_breaks_its_worker_says_how(make_bench):
    """A worker that dies in a check gives a measurement of that, and is replaced."""
    measured = make_bench("detect measure order signal:SIGSEGV then detect forever")
    measured.measure(CONFIG, EFFORT)
    assert measured.check(CONFIG).outcome is Outcome.CRASH
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_a_whole_step_is_looked_at_on_the_worker_that_measured_once_for_each_config(make_bench):
    """Nothing is started for it, and what was told of a config is known."""
    measured = make_bench("detect forever")
    assert measured.step_bytes(CONFIG) is None
    measured.measure(CONFIG, EFFORT)
    assert [measured.step_bytes(config) for config in (CONFIG, Config(), CONFIG)] == [200, 300, 200]
    assert measured.starts == 1


def test_a_look_that_breaks_its_worker_tells_nothing(make_bench):
    """A worker that dies of it is replaced where the next config is measured."""
    measured = make_bench("detect measure order signal:SIGSEGV then detect forever")
    measured.measure(CONFIG, EFFORT)
    assert measured.step_bytes(CONFIG) is None
    assert measured.measure(CONFIG, EFFORT).outcome is Outcome.OK


def test_output_is_given_out_once(make_bench):
    """Each trial gets what was printed since the last one, and a new worker's output from its beginning."""
    measured = make_bench("print:one detect measure order print:two answer ended:9:0 then print:three detect forever")
    assert measured.take_output() == ""
    for printed in ("one\n", "two\n", "three\n"):
        measured.measure(CONFIG, EFFORT)
        assert measured.take_output() == printed
        assert measured.take_output() == ""


def test_a_trials_last_words_are_in_its_output(make_bench):
    """What a worker printed before it died is there after the trial."""
    measured = make_bench("detect measure order print:alas signal:SIGKILL")
    measured.measure(Config(), EFFORT)
    measured.measure(CONFIG, EFFORT)
    assert measured.take_output() == "alas\n"


def test_leaving_the_bench_ends_its_worker(make_bench, is_gone):
    """The context manager leaves no process behind, whatever goes wrong inside it."""

    def fail():
        with make_bench("child detect forever") as measured:
            measured.detect()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert is_gone()
    assert is_gone("child")
