import optuna
import pytest
import sqlalchemy

from autorecompute.errors import SetupError
from autorecompute.measurement import Outcome
from autorecompute.studies.sharing.claims import frozen_claim
from autorecompute.waiting import OutOfTime, ending_at
from stand_ins.sharing import LIMIT, claim


@pytest.mark.parametrize(
    "call", ["create_new_trial", "set_trial_state_values", "get_trial_id_from_study_id_trial_number"]
)
@pytest.mark.usefixtures("clock")
def test_what_was_written_when_a_connection_broke_is_written_once(join, space, config, make_trial, call):
    worker, broken = join(), []
    worker.give_up()
    method = getattr(worker._storage, call)

    def break_once(*arguments, **options):
        answer = method(*arguments, **options)
        if not broken:
            broken.append(call)
            raise sqlalchemy.exc.OperationalError("SELECT 1", {}, OSError("the server closed the connection"))
        return answer

    setattr(worker._storage, call, break_once)
    number = claim(worker, config, space)
    trial = make_trial(config, number=number)
    assert worker.end(trial, LIMIT)
    assert broken
    assert worker.refresh().trials == (trial,)
    assert worker.view.running == {}
    assert ["Trying again" in note for note in worker.notes] == [True, False]
    assert worker.notes[1].endswith("/journal is back")


def test_a_claim_that_was_given_back_at_once_is_made_again(join, space, config, monkeypatch):
    worker = join()
    worker.give_up()
    create, lost = worker._storage.create_new_trial, []

    def create_and_lose(*arguments):
        made = create(*arguments)
        if not lost:
            lost.append(made)
            worker._storage.set_trial_state_values(made, optuna.trial.TrialState.FAIL)
        return made

    monkeypatch.setattr(worker._storage, "create_new_trial", create_and_lose)
    assert claim(worker, config, space) == 2
    assert [trial.measurement.outcome for trial in worker.view.trials] == [Outcome.LOST]


def test_a_claim_that_nobody_knows_of_is_given_back(join, space, config):
    worker = join()
    number = claim(worker, config, space)
    worker._storage.create_new_trial(worker._study_id, frozen_claim(worker.view.running[number], space, None))
    assert list(worker.refresh().running) == [number]
    assert worker.view.trials == ()


def away():
    raise sqlalchemy.exc.OperationalError("SELECT 1", {}, None) from OSError(111, "Connection refused")


def test_a_storage_that_stays_away_for_a_minute_ends_the_tuning(join, clock):
    worker, began = join(), clock.now
    with pytest.raises(SetupError, match=r"Connection refused.*run the same command again"):
        worker._patiently(away)
    assert clock.now == began + 60
    assert len(worker.notes) == 1


def test_a_storage_is_waited_for_until_the_deadline_and_asked_once_after_it(join, clock):
    worker, began = join(), clock.now
    with ending_at(began + 10):
        with pytest.raises(OutOfTime):
            worker._patiently(away)
        with pytest.raises(SetupError, match="run the same command again"):
            worker._patiently(away)
    assert clock.now == began + 10
    assert len(worker.notes) == 1


def test_what_is_broken_is_not_asked_again(join):
    worker, asked = join(), []

    def broken():
        asked.append(1)
        raise sqlalchemy.exc.DataError("INSERT", {}, ValueError("too long"))

    with pytest.raises(SetupError, match="cannot be used"):
        worker._patiently(broken)
    assert len(asked) == 1
