"""An answer within the time that is given, and at any moment it is asked for."""

import json
import signal
import time
from pathlib import Path

import pytest

from workplace import FREED_AT_ONCE, PLAIN_BATCH

PROMISED = 1.1
"""What a command may take of its timeout."""

SOON_SECONDS = 60
"""Starting Python and ending a script take no longer, however busy the machine is."""

ENOUGH = 6
"""Times what one start, one trial and one confirmation take."""

COMMAND = ("plain_transformer.py", "--backend", "torch", "--json")
TARGET = ("--batch-flag=--bs", "--target-batch", str(PLAIN_BATCH))
LONG = ("--sampler", "random")
"""A search that goes on until its trials are used up outlasts the first confirmation by far."""

SCRIPTS_OWN = ("--bs", str(PLAIN_BATCH))
"""What gives the script its batch without a target: the answer is compared with no smaller one, which takes as long."""


@pytest.fixture(scope="module")
def place(make_workplace):
    """A working directory in which nothing else is tuned."""
    return make_workplace("anytime", **FREED_AT_ONCE)


@pytest.fixture(scope="module")
def begin(place, plain_limit_bytes):
    """Starts a tuning that needs recompute, or one under another limit."""

    def begin(study, *options, limit=plain_limit_bytes, arguments=()):
        options = ("--memory-limit", str(limit), "--study", study, "--fresh", *options)
        batch = () if arguments else TARGET
        return place.start_tuning(*COMMAND, *batch, *options, arguments=arguments)

    return begin


@pytest.fixture(scope="module")
def unlimited(place, begin):
    """A tuning of one trial, under a limit that nothing can reach."""
    return place.finish(begin("unlimited", limit="1000GiB"))


def test_a_timeout_bounds_the_whole_command(place, begin, unlimited):
    """From its start to its end a command takes 110 % of its time at most, and ends with a confirmed answer."""
    timeout = round(ENOUGH * unlimited.seconds)
    finished = place.finish(begin("timed", "--timeout", f"{timeout}s"))
    assert finished.code == 0, finished.stderr
    assert finished.seconds <= PROMISED * timeout, finished.stderr
    assert finished.answer["best"]["confirmed"]
    assert finished.answer["search_end"] in {"time", "nothing_left"}


def test_too_short_a_timeout_is_kept_as_well(place, begin):
    """Less time than the script takes to start ends with a sentence, and leaves no process."""
    finished = place.finish(begin("short", "--timeout", "1s"))
    assert finished.seconds < SOON_SECONDS
    assert (finished.code, finished.answer["exit_code"]) == (4, 4)
    assert "--timeout" in finished.complaint
    assert place.processes() == []


@pytest.fixture(scope="module")
def stopped(place, begin):
    """A tuning that was stopped twice in a row as soon as something was confirmed and another trial was done."""
    process = begin("stopped", *LONG, "--max-trials", "200", arguments=SCRIPTS_OWN)
    study = place.path / "studies" / "stopped"
    place.wait_until(lambda: process.poll() is not None or (study / "result.json").is_file())
    trials = len(list((study / "trials").iterdir()))
    place.wait_until(lambda: process.poll() is not None or len(list((study / "trials").iterdir())) > trials)
    assert process.poll() is None, place.finish(process).stderr
    process.send_signal(signal.SIGINT)
    time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    return place.finish(process)


def test_an_interruption_emits_the_best_that_was_confirmed(stopped, place):
    """Whoever stops a tuning has the answer so far on stdout, the sentence on stderr, and files to train with."""
    assert stopped.code == 130, stopped.stderr
    answer = stopped.answer
    assert (answer["search_end"], answer["best"]["confirmed"]) == ("interrupted", True)
    assert "The best that is confirmed so far" in stopped.complaint
    assert "Traceback" not in stopped.stderr
    (path,) = answer["best"]["env"].values()
    assert json.loads(Path(path).read_text())["plans"] == answer["best"]["config"]
    emitted = place.finish(place.start("-m", "autorecompute", "emit", "stopped", "--format", "json"))
    assert (emitted.code, emitted.answer["environment"]) == (0, answer["best"]["env"])
    assert place.processes() == []


def test_an_interrupted_answer_is_gone_on_with(stopped, place, begin):
    """The same command is not answered by it: it confirms nothing twice, and comes to the end."""
    trials = stopped.answer["trials"]
    finished = place.finish(begin("stopped", *LONG, "--max-trials", str(trials + 1), arguments=SCRIPTS_OWN))
    assert finished.code == 0, finished.stderr
    assert f"after {trials} trial" in finished.stderr
    assert (finished.answer["search_end"], finished.answer["trials"]) == ("trials", trials + 1)
    confirmed = json.loads((place.study("stopped").path / "confirmed.json").read_text())["confirmed"]
    configs = [json.dumps(best["config"], sort_keys=True) for best in confirmed]
    assert len(set(configs)) == len(configs)
    assert json.dumps(stopped.answer["best"]["config"]) in [json.dumps(best["config"]) for best in confirmed]
