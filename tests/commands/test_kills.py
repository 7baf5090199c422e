"""Processes that are killed at chosen points, and a study that goes on."""

import contextlib
import signal
import sqlite3
from pathlib import Path

DYING = Path(__file__).with_name("dying.py")
TESTS = str(Path(__file__).parents[1])
BEFORE = {
    "the script is started": ("subprocess.Popen", "trainer.py"),
    "the study is begun": ("os.rename", "study.json"),
}
AFTER = {
    "a trial is in the database, and nothing of it in its folder": ("os.mkdir", "trials/0001"),
    "a trial has half a folder": ("os.rename", "trials/0002/result.json"),
    "a trial has all of its folder, and is not known as ended": ("os.remove", "in_progress.json"),
}
"""Where the tuner is killed: what it is about to do, and to which file; before its first trial, and when it has one."""

TRIALS = 8
SEARCH = ("--memory-limit", "410MiB", "--sampler", "greedy", "--max-trials", str(TRIALS), "--json")


def rows_after(desk, process):
    """Trials in the database when a killed tuner and its script are gone; none where it has no table yet."""
    finished = desk.finish(process)
    assert finished.code == -signal.SIGKILL, finished.stderr
    desk.wait_until(lambda: not desk.processes())
    with contextlib.suppress(ValueError, sqlite3.OperationalError):
        return desk.study().count_rows()
    return 0


def test_no_trial_is_lost_and_the_study_ends_as_if_nothing_had_happened_but_that_what_was_lost_is_measured_again(desk):
    """A session is killed at each of the points, one in a trial; of the last one the script is killed in a trial."""

    def die(point):
        return rows_after(desk, desk.start(DYING, *point, *desk.tuning(*SEARCH)[1:], PYTHONPATH=TESTS))

    before = [die(point) for point in BEFORE.values()]
    process = desk.start_tuning(*SEARCH, FAKE_FAULT="stand@0")
    desk.wait_until(lambda: desk.has_printed("stand at 0"))
    process.kill()
    counts = [*before, rows_after(desk, process), *map(die, AFTER.values())]
    assert counts == [0, 0, 0, 2, 3, 3]
    resumed = desk.tune(*SEARCH, FAKE_FAULT=f"SIGKILL@{counts[-1]}")
    assert resumed.code == 4, resumed.stderr
    study, outcomes = desk.study(), {}
    for trial, config in zip(study.trials, study.configs, strict=True):
        outcomes.setdefault(config, []).append(trial["measurement"]["outcome"])
    assert len(outcomes) == TRIALS
    assert all(seen in (["over_limit"], ["lost", "over_limit"]) for seen in outcomes.values())
    assert ["lost", "over_limit"] in outcomes.values()
