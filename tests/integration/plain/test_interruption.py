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
    """A working directory in which nothing else is tuned."""
    return make_plain_copy("interrupted")


@pytest.fixture(scope="module")
def go_on(place, plain_limit_bytes):
    """Starts a search that pays for months of training and has trials for them; gives it once it has measured some."""
    problem = ("--target-batch", str(PLAIN_BATCH), "--memory-limit", str(plain_limit_bytes), "--study", "interrupted")
    search = ("--backend", "torch", "--batch-flag=--bs", "--sampler", "random", "--max-trials", "200", "--json")

    def go_on(known=0, *, until="trials/0001"):
        process = place.start_tuning("plain_transformer.py", *problem, *search, "--train-for", "10000h", "--fresh")
        told = (f"trials/{known + 1:04d}/result.json", until)  # one that was lost is kept at the start
        files = [place.path / "studies" / "interrupted" / name for name in told]
        place.wait_until(lambda: process.poll() is not None or all(file.exists() for file in files))
        assert process.poll() is None, place.finish(process).stderr
        return process

    return go_on


def test_a_killed_search_goes_on_with_all_its_trials_and_an_interruption_leaves_an_answer(place, go_on):
    process = go_on()
    assert len(place.processes()) > 1
    process.kill()
    assert place.finish(process).code == -signal.SIGKILL
    place.wait_until(lambda: not place.processes())
    known = len(place.study("interrupted").trials)
    process = go_on(known, until="result.json")
    process.send_signal(signal.SIGINT)
    finished = place.finish(process)
    assert (finished.code, place.processes()) == (130, []), finished.stderr
    assert finished.answer["best"]["confirmed"]
    assert re.search(rf"after ({known}|{known + 1}) trials", finished.stderr), finished.stderr
    trials = place.study("interrupted").trials
    measured = [trial for trial in trials if trial["measurement"]["outcome"] != "lost"]
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
