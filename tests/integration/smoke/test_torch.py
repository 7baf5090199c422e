import sys

import pytest

from autorecompute.units import MIB
from workplace import PLAIN_BATCH, SCRIPTS

pytestmark = pytest.mark.usefixtures("warm_python")


@pytest.fixture(scope="module")
def tuned(plain_road, plain_limit_bytes):
    # The script's own batch is compared with no smaller one, which takes a process for each side of a pair.
    options = ("--backend", "torch", "--memory-limit", str(plain_limit_bytes), "--max-trials", "3", "--json")
    finished = plain_road.tune(
        "plain_transformer.py", *options, "--study", "limited", arguments=("--bs", str(PLAIN_BATCH))
    )
    assert finished.code == 0, finished.stderr
    return finished.answer


def test_an_answer_holds_the_limit_and_has_the_gradients_of_no_recompute(tuned):
    best = tuned["best"]
    assert best["config"]
    assert best["confirmed"]
    assert best["peak_bytes"] <= best["limit_bytes"]
    assert best["gradients"] == {**best["gradients"], "agrees": True, "worst": 0.0}


def test_what_is_given_out_trains_the_unmodified_script_in_less_memory(tuned, plain_road):
    train = (sys.executable, str(SCRIPTS / "plain_transformer.py"), "--bs", str(PLAIN_BATCH), "--steps", "3")
    plain = plain_road.finish(plain_road.start(*train[1:]))
    given = plain_road.finish(plain_road.start("-m", "autorecompute", "run", "limited", "--", *train))
    assert given.code == plain.code == 0, given.stderr
    losses = [[line for line in done.stdout.splitlines() if line.startswith("step")] for done in (given, plain)]
    assert losses[0] == losses[1]
    assert given.printed_peak_bytes < plain.printed_peak_bytes
    assert given.printed_peak_bytes <= tuned["best"]["limit_bytes"] + 16 * MIB
