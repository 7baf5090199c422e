"""A tuning that is stopped, in each of the ways there are, and goes on."""

import re
import signal
from dataclasses import dataclass

import pytest


@dataclass(frozen=True)
class Stop:
    """How a tuning took a signal.

    Attributes:
        finished: How it ended.
        running: Processes before the signal, the tuning among them.
        left: Processes after its end.
        trials: Trials that were kept.
    """

    finished: object
    running: list
    left: list
    trials: int


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which nothing else is tuned."""
    return make_workplace("interrupted")


@pytest.fixture(scope="module")
def start(place, hopeless):
    """Starts the command that is stopped again and again; its search does not see that nothing will fit."""
    return lambda: place.start_tuning(*hopeless, "--sampler", "greedy", "--max-trials", "5", "--json")


@pytest.fixture(scope="module")
def stops(place, start):
    """One tuning, stopped by one signal after its second trial, and by the other after its third."""
    stops = {}
    for trials, number in enumerate((signal.SIGTERM, signal.SIGINT), start=2):
        process = start()
        place.wait_for_trials(process, trials)
        running = place.processes()
        process.send_signal(number)
        finished = place.finish(process)
        stops[number] = Stop(finished, running, place.processes(), len(place.study().trials))
    return stops


@pytest.fixture(scope="module")
def resumed(stops, place, start):
    """The same tuning, left alone at last."""
    assert stops
    return place.finish(start())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_keeps_the_study_and_says_so(stops, number):
    """A stopped tuning ends with 130, one sentence about what is kept, and no traceback."""
    stop = stops[number]
    assert stop.finished.code == 130
    assert stop.finished.answer["exit_code"] == 130
    assert re.search(rf"\b{stop.trials} trials?\b", stop.finished.complaint)
    assert "Traceback" not in stop.finished.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_interruption_leaves_no_process(stops, number):
    """When a stopped tuning has ended, so has the script that it had started."""
    assert len(stops[number].running) > 1
    assert stops[number].left == []


def test_a_session_goes_on_after_the_last(stops):
    """The second session begins with the trials of the first, and adds to them."""
    first, second = stops.values()
    assert f"after {first.trials} trial" in second.finished.stderr
    assert second.trials > first.trials


def test_the_same_command_finishes_what_was_interrupted(resumed, place):
    """The resumed tuning uses up the trials that were left, and comes to the answer of all sessions together."""
    assert resumed.code == 4, resumed.stderr
    study = place.study()
    assert len(study.trials) == study.count_rows() == 5
    least = min(trial["measurement"]["peak_bytes"] for trial in study.trials)
    assert f"{least / 2**20:.0f} MiB" in resumed.complaint


def test_no_config_is_measured_twice(resumed, place):
    """However often a tuning was stopped, each config has one trial."""
    assert resumed.trial_lines
    assert len(set(place.study().configs)) == 5


def test_an_interruption_before_the_first_trial_is_one_as_well(workplace, in_plain_pytorch):
    """A tuning that is stopped while its script still starts ends with 130 and leaves nothing running."""
    process = workplace.start_tuning("classifier.py", "--backend", "torch", **in_plain_pytorch)
    workplace.wait_until(lambda: len(workplace.processes()) > 1)
    process.send_signal(signal.SIGINT)
    stopped = workplace.finish(process)
    assert stopped.code == 130
    assert "Traceback" not in stopped.stderr
    assert workplace.processes() == []


def test_a_killed_tuner_takes_its_script_with_it(workplace, in_plain_pytorch):
    """A tuner without time to clean up leaves no script behind, be it deaf in a step that never ends."""
    process = workplace.start_tuning(
        "breaking.py", "--backend", "torch", arguments=("--fault", "hang"), **in_plain_pytorch
    )
    workplace.wait_until(lambda: process.poll() is not None or workplace.has_printed("breaks"))
    assert len(workplace.processes()) > 1
    process.kill()
    assert workplace.finish(process).code == -signal.SIGKILL
    workplace.wait_until(lambda: not workplace.processes())
