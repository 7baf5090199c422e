"""What a later session makes of trials that a machine took with it."""

import contextlib

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.ledger import settled
from stand_ins.formula import stop

FIRST, SECOND = Config.parse(["blocks.*/gelu:drop"]), Config.parse(["blocks.*/add:drop"])


@pytest.fixture
def stopped(make_tuning):
    """A session of three trials that was stopped in the third."""
    return stop(make_tuning(max_trials=3), interrupt_at=2)


@pytest.fixture
def go_on(stopped, make_tuning):
    """Ends the search, after what the test has done to the stopped one; gives the session and its notes."""

    def go_on():
        again = make_tuning(max_trials=3)
        with contextlib.suppress(NothingFitsError):
            again.run()
        return list(stopped.folder.path.glob("trials/*/result.json")), " ".join(again.watcher.notes)

    return go_on


@pytest.mark.parametrize(
    ("ends", "numbers"),
    [
        ([(FIRST, "ok"), (SECOND, "lost")], [0]),
        ([(FIRST, "lost"), (SECOND, "ok"), (FIRST, "over_limit")], [1, 2]),
        ([(FIRST, "lost"), (SECOND, "lost"), (FIRST, "lost")], [2]),
    ],
    ids=["lost once", "measured later", "lost twice"],
)
def test_a_config_is_tried_again_until_it_was_lost_twice(make_trial, ends, numbers):
    trials = [
        make_trial(config, number=number, outcome=Outcome(outcome)) for number, (config, outcome) in enumerate(ends)
    ]
    assert [trial.number for trial in settled(trials)] == numbers


def test_what_an_earlier_session_took_with_it_is_kept_as_lost_and_measured_after_all(stopped, go_on, make_trial):
    assert stopped.folder.trial_in_progress() is None
    config, number = Config.of(stopped.bench.detection.space.plans[:2]), len(stopped.tried)
    stopped.folder.begin_trial(make_trial(config, number=number, outcome=Outcome.LOST))
    files, notes = go_on()
    assert "was interrupted" in notes
    assert stopped.folder.trial(number) / "result.json" in files
    assert len(files) == 4


@pytest.mark.parametrize("left", ["", '{"number": 2, "con'])
def test_a_trial_that_a_loss_of_power_cut_off_is_no_obstacle(stopped, go_on, left):
    (stopped.folder.path / "in_progress.json").write_text(left)
    files, notes = go_on()
    assert "which one is not known" in notes
    assert stopped.folder.trial_in_progress() is None
    assert len(files) == 3
