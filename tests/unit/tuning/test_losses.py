import contextlib

import pytest

from autorecompute.errors import NothingFitsError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from autorecompute.tuning.ledger import settled

FIRST, SECOND = Config.parse(["blocks.*/gelu:drop"]), Config.parse(["blocks.*/add:drop"])


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


def test_only_a_trial_that_nobody_ended_is_left(make_tuning):
    tuning = make_tuning(max_trials=3)
    tuning.bench.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    assert tuning.folder.trial_in_progress() is None


def test_what_an_earlier_session_took_with_it_is_kept_as_lost(make_tuning, make_trial):
    tuning = make_tuning(max_trials=3)
    tuning.bench.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    again = make_tuning(max_trials=3)
    first = Config.of(again.bench.detection.space.plans[:2])
    number = len(list(again.folder.path.glob("trials/*")))
    again.folder.begin_trial(make_trial(first, number=number, outcome=Outcome.LOST))
    with contextlib.suppress(NothingFitsError):
        again.run()
    assert any("went away" in note for note in again.watcher.notes)
    assert (again.folder.trial(number) / "result.json").is_file()
    assert len(list(again.folder.path.glob("trials/*/result.json"))) == 4


@pytest.mark.parametrize("left", ["", '{"number": 2, "con'])
def test_a_trial_that_nobody_knows_any_more_is_no_obstacle(make_tuning, left):
    tuning = make_tuning(max_trials=3)
    tuning.bench.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    (tuning.folder.path / "in_progress.json").write_text(left)
    again = make_tuning(max_trials=3)
    with contextlib.suppress(NothingFitsError):
        again.run()
    assert any("did not leave word" in note for note in again.watcher.notes)
    assert again.folder.trial_in_progress() is None
    assert len(list(again.folder.path.glob("trials/*/result.json"))) == 3


def test_a_trial_without_its_folder_gets_one(make_tuning):
    tuning = make_tuning(max_trials=3)
    tuning.bench.interrupt_at = 2
    with pytest.raises(KeyboardInterrupt):
        tuning.run()
    last = max(tuning.folder.path.glob("trials/*"))
    (last / "result.json").unlink()
    again = make_tuning(max_trials=3)
    with contextlib.suppress(NothingFitsError):
        again.run()
    assert (last / "result.json").is_file()
    assert not any("went away" in note for note in again.watcher.notes)
