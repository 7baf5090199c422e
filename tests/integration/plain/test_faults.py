"""Scripts that fail, end or leave, each in a way of its own, and a tuner that is killed."""

import functools
import signal

import psutil
import pytest

from autorecompute.errors import ScriptError, TooLargeError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.trials import Bench, Job
from autorecompute.trials.job import Effort

EFFORT = Effort(warmup=1, steps=2)
DEAF = """
import signal

print("is deaf")
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    signal.pause()
"""


@pytest.fixture
def start(tmp_path, scripts, in_plain_pytorch, monkeypatch):
    """A bench for a script, in plain PyTorch."""
    monkeypatch.setenv("PYTHONPATH", in_plain_pytorch["PYTHONPATH"])
    return lambda script, *arguments, batch=None, **fields: Bench(
        Job(script=scripts / script, arguments=arguments, backend="torch", **fields), batch, tmp_path
    )


def test_a_script_with_just_enough_steps_for_one_trial_is_tuned_at_its_own_batch(workplace, in_plain_pytorch):
    arguments = ("--steps", "5", "--bs", "9")
    tuned = workplace.tune("classifier.py", "--backend", "torch", "--json", arguments=arguments, **in_plain_pytorch)
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["best"]["batch"] == 9


@pytest.mark.parametrize("place", ["forward", "backward", "optimizer"])
def test_memory_that_runs_out_in_a_step_that_the_script_leaves_out_is_told(start, place):
    """A loop that goes on after any exception does not hide that a config needs more than there is."""
    with start("breaking.py", "--goes-on", "--fault", place, "--at-step", "2") as broken:
        measurement = broken.measure(Config(), EFFORT)
    assert measurement.outcome is Outcome.OOM
    assert "out of memory" in measurement.message
    assert measurement.trace[-1].startswith("RuntimeError: ")
    assert any("breaking.py" in line for line in measurement.trace)


def test_a_refusal_reaches_the_user_of_a_script_that_catches_everything(start):
    """The loop may go on without a step for ever: the tool has said why before."""
    with start("breaking.py", "--goes-on", "--scripted") as started, pytest.raises(ScriptError, match="TorchScript"):
        started.detect()


def test_a_batch_that_has_no_room_before_anything_is_recomputed_is_told_apart(start):
    """Whoever looks for a batch goes on with half of it, which no other failure of a script would mend."""
    lacks = functools.partial(start, "breaking.py", "--fault", "large batch", batch_flag="--bs")
    with lacks(batch=4) as large, pytest.raises(TooLargeError, match="out of memory"):
        large.detect()
    with lacks(batch=2) as small:
        assert small.detect().batch == 2


@pytest.mark.parametrize(("way", "backend"), [("by-hand", "torch"), ("by-hand-briefly", "ortmodule")])
def test_a_script_that_updates_its_weights_by_hand(workplace, way, backend):
    """Where no torch optimizer is made, nobody can tell steps apart: the tuning ends, and says what is missing."""
    failed = workplace.tune("elsewhere.py", "--backend", backend, arguments=("--way", way))
    assert failed.code == 5
    assert "No torch.optim optimizer was found" in failed.complaint


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("spawn", "trains in a process that it starts itself"),
        ("fork", "trains in a process that it starts itself"),
        ("fork-first", "trains in a process that it starts itself"),
        # Whether its first step or its parent's end is seen first, the way out is the same.
        ("daemon", "in the foreground"),
        ("daemon-by-exit", "It started other processes"),
        ("leave", "os._exit(0)"),
    ],
)
def test_a_script_that_trains_out_of_sight(workplace, way, words):
    """A script whose own process does not train ends the tuning in a sentence of its own, and leaves no process."""
    failed = workplace.tune("elsewhere.py", arguments=("--way", way))
    assert failed.code == 5
    assert words in failed.complaint
    assert "Outcome: crash" not in failed.complaint
    workplace.wait_until(lambda: not any(map(psutil.Process.is_running, workplace.processes())))


@pytest.mark.parametrize("way", ["help-and-train", "train-and-leave", "thread", "pool", "group"])
def test_a_script_that_trains_in_its_own_process_may_do_all_else(start, way):
    """A forked process that ends, an end without a word, threads that outlast the script's last line, a new group."""
    with start("elsewhere.py", "--way", way) as elsewhere:
        measured = [elsewhere.measure(Config(), EFFORT) for _ in range(2)]
    assert [measurement.outcome for measurement in measured] == [Outcome.OK] * 2


def test_a_killed_tuner_takes_its_script_with_it(workplace):
    """Be it deaf in what never ends."""
    (workplace.path / "deaf.py").write_text(DEAF)
    process = workplace.start("-m", "autorecompute", "tune", "deaf.py")
    workplace.wait_until(lambda: process.poll() is not None or workplace.has_printed("is deaf"))
    assert len(workplace.processes()) > 1
    process.kill()
    assert workplace.finish(process).code == -signal.SIGKILL
    workplace.wait_until(lambda: not workplace.processes())
