"""A real tuning that is killed and that is stopped, and goes on."""

import re
import signal

import pytest

from workplace import PLAIN_BATCH

DEAF = """
import signal

print("is deaf")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


@pytest.fixture(scope="module")
def place(make_plain_copy):
    """A working directory with a study that has an answer, in which nothing else is tuned."""
    return make_plain_copy("interrupted")


@pytest.fixture(scope="module")
def go_on(place, plain_limit_bytes):
    """Starts a search that goes on until its trials are used up; gives it once it has measured some, of how many."""
    problem = ("--target-batch", str(PLAIN_BATCH), "--memory-limit", str(plain_limit_bytes), "--study", "limited")
    search = ("--backend", "torch", "--batch-flag=--bs", "--sampler", "random", "--max-trials", "200", "--json")

    def go_on():
        known = len(place.study("limited").trials)
        process = place.start_tuning("plain_transformer.py", *problem, *search)
        place.wait_for_trials(process, known + 2)  # one that was lost is kept at the start
        return process, known

    return go_on


def test_a_killed_search_goes_on_with_all_its_trials_and_an_interruption_leaves_an_answer(place, go_on):
    process, _ = go_on()
    assert len(place.processes()) > 1
    process.kill()
    assert place.finish(process).code == -signal.SIGKILL
    place.wait_until(lambda: not place.processes())
    process, known = go_on()
    process.send_signal(signal.SIGINT)
    finished = place.finish(process)
    assert (finished.code, place.processes()) == (130, []), finished.stderr
    assert finished.answer["best"]["confirmed"]
    assert re.search(rf"after ({known}|{known + 1}) trials", finished.stderr), finished.stderr
    measured = [trial for trial in place.study("limited").trials if trial["measurement"]["outcome"] != "lost"]
    configs = [tuple(trial["config"]) for trial in measured]
    assert len(set(configs)) == len(configs) > known


def test_a_killed_tuner_takes_its_script_with_it(workplace):
    """Be it deaf in what never ends."""
    (workplace.path / "deaf.py").write_text(DEAF)
    process = workplace.start("-m", "autorecompute", "tune", "deaf.py")
    workplace.wait_until(lambda: process.poll() is not None or workplace.has_printed("is deaf"))
    assert len(workplace.processes()) > 1
    process.kill()
    assert workplace.finish(process).code == -signal.SIGKILL
    workplace.wait_until(lambda: not workplace.processes())
