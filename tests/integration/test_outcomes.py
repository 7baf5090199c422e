"""Each outcome of a trial, caused for real on a script that trains."""

import contextlib

import pytest

from autorecompute.errors import ScriptError, TooLargeError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job, bench
from autorecompute.trials.effort import Effort

EFFORT = Effort(warmup=1, steps=2)
FAULTY_STEP = "6"
"""The first measurement takes four steps, so this one lies in the second."""


@pytest.fixture
def begin(tmp_path, scripts):
    """Starts a script on a bench, and measures it once without a fault."""
    with contextlib.ExitStack() as stack:

        def begin(script, *arguments):
            job = Job(script=scripts / script, arguments=arguments)
            started = stack.enter_context(Bench(job, None, tmp_path))
            assert started.measure(Config(), EFFORT).outcome is Outcome.OK
            return started

        yield begin


@pytest.fixture
def impatient(monkeypatch):
    """A bench that waits for a step no longer than it must on a busy machine."""
    monkeypatch.setattr(bench, "LEAST_STALL_SECONDS", 6.0)
    monkeypatch.setattr(bench, "SLOWDOWN", 0.0)


@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("exhaust-torch", Outcome.OOM, "out of memory"),
        ("exhaust-ort", Outcome.OOM, "out of memory"),
        ("segfault", Outcome.CRASH, "SIGSEGV"),
        ("raise", Outcome.SCRIPT_ERROR, "sample 17 cannot be read"),
        ("shrink", Outcome.WRONG_BATCH, "a batch of 3, not 4"),
        ("diverge", Outcome.DIVERGED, "nan"),
        ("kill", Outcome.LOST, "from outside"),
    ],
)
def test_a_trial_that_breaks_is_called_by_its_name(begin, fault, outcome, words):
    """A fault in a trial gives its outcome and its reason, and the next trial is measured on a new worker."""
    broken = begin("breaking.py", "--fault", fault, "--at-step", FAULTY_STEP)
    measurement = broken.measure(Config(), EFFORT)
    assert measurement.outcome is outcome
    assert words in measurement.message
    assert broken.measure(Config(), EFFORT).outcome is Outcome.OK
    assert broken.starts == 2


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_memory_that_runs_out_in_a_step_that_the_script_leaves_out_is_told(begin, place):
    """A loop that goes on after any exception does not hide that a config needs more than there is."""
    broken = begin("skipping.py", "--at", place, "--step", FAULTY_STEP)
    measurement = broken.measure(Config(), EFFORT)
    assert measurement.outcome is Outcome.OOM
    assert "out of memory" in measurement.message
    assert measurement.trace[-1].startswith("RuntimeError: ")
    assert any("skipping.py" in line for line in measurement.trace)


def test_memory_that_runs_out_in_an_ortmodule_is_told_though_the_script_goes_on(begin):
    """ORT's own error is caught by the loop, and the trial has it before."""
    broken = begin("breaking.py", "--fault", "exhaust-ort", "--at-step", FAULTY_STEP, "--goes-on")
    assert broken.measure(Config(), EFFORT).outcome is Outcome.OOM


def test_a_refusal_reaches_the_user_of_a_script_that_catches_everything(tmp_path, scripts, monkeypatch):
    """The loop may go on without a step for ever: the tool has said why before."""
    monkeypatch.setattr(bench, "START_TIMEOUT_SECONDS", 60.0)
    job = Job(script=scripts / "skipping.py", arguments=("--scripted",))
    with Bench(job, None, tmp_path) as started, pytest.raises(ScriptError, match="TorchScript"):
        started.detect()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("fault", "outcome", "words"),
    [
        ("crawl", Outcome.TIMEOUT, "not done within 18 s"),
        ("hang", Outcome.HANG, "no step for 6 s"),
        ("stop", Outcome.HANG, "no step for 6 s"),
    ],
)
def test_a_trial_that_does_not_end_is_ended(begin, fault, outcome, words):
    """A script that gets nowhere, stands still or is stopped is ended after a while, and its trial says which."""
    broken = begin("breaking.py", "--fault", fault, "--at-step", FAULTY_STEP)
    measurement = broken.measure(Config(), EFFORT)
    assert measurement.outcome is outcome
    assert words in measurement.message


@pytest.mark.usefixtures("impatient")
def test_a_hang_shows_where(begin):
    """The log of a script that hangs ends with the stack of what hangs."""
    broken = begin("breaking.py", "--fault", "hang", "--at-step", FAULTY_STEP)
    broken.measure(Config(), EFFORT)
    assert "breaking.py" in broken.log.read_text().split("most recent call first")[-1]


def test_a_batch_that_has_no_room_before_anything_is_recomputed_is_told_apart(tmp_path, scripts):
    """Whoever looks for a batch goes on with half of it, which no other failure of a script would mend."""
    job = Job(script=scripts / "overloaded.py", batch_flag="--bs")
    with Bench(job, 4, tmp_path) as bench, pytest.raises(TooLargeError, match="out of memory"):
        bench.detect()
    with Bench(job, 2, tmp_path) as bench:
        assert bench.detect().batch == 2
