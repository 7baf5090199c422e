"""Scripts that train without an optimizer, or in another process than the one that is measured."""

import psutil
import pytest

NO_OPTIMIZER = "The script makes no torch optimizer"
ITS_OWN = "only the script's own process is measured"


@pytest.mark.parametrize("way", ["by-hand", "by-hand-briefly"])
@pytest.mark.parametrize("options", [("--backend", "torch"), ("--wrap",)])
def test_a_script_that_updates_its_weights_by_hand(workplace, way, options):
    """Where no torch optimizer is made, nobody can tell steps apart: the tuning ends, and says what is missing."""
    failed = workplace.tune("elsewhere.py", *options, arguments=("--way", way))
    assert failed.code == 5
    assert NO_OPTIMIZER in failed.complaint


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("spawn", "trains in a process that it starts itself"),
        ("fork", "trains in a process that it starts itself"),
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
def test_a_script_that_trains_in_its_own_process_may_do_all_else(workplace, way):
    """A forked process that ends, an end without a word, threads that outlast the script's last line, a new group."""
    tuned = workplace.tune("elsewhere.py", "--max-trials", "2", "--json", arguments=("--way", way))
    assert tuned.code == 0, tuned.stderr
    assert {trial["measurement"]["outcome"] for trial in workplace.study().trials} == {"ok"}
