import contextlib

import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState

from autorecompute.studies.sharing import opening, parse_storage

LIMIT = "1s"
LOCK_TRIALS = "SELECT * FROM trials FOR UPDATE"


@pytest.fixture
def open_one(database_url):
    with contextlib.ExitStack() as connections:

        def open_one(options=""):
            _, storage = opening.open_study(parse_storage(database_url + options), "bert")
            connections.callback(storage.engine.dispose)
            return storage

        yield open_one


@pytest.fixture
def trial(open_one):
    storage = open_one()
    return storage.create_new_trial(storage.get_study_id_from_name("bert"))


@pytest.fixture
def shorten(monkeypatch):
    return lambda name: monkeypatch.setitem(opening.SERVER_LIMITS, name, LIMIT)


def settings_of(storage):
    with storage.engine.connect() as connection:
        return {name: connection.scalar(sqlalchemy.text(f"SHOW {name}")) for name in opening.SERVER_LIMITS}


def test_who_stops_in_the_middle_of_a_write_is_not_waited_for(open_one, trial, shorten):
    """The server lets go of what a stopped worker held."""
    shorten("idle_in_transaction_session_timeout")
    stopped, other = open_one(), open_one()
    with stopped.engine.connect() as connection:
        connection.execute(sqlalchemy.text(LOCK_TRIALS))
        assert other.set_trial_state_values(trial, TrialState.FAIL)
        with pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
            connection.execute(sqlalchemy.text(LOCK_TRIALS))
    assert opening.is_away(caught.value)
    assert stopped.get_trial(trial).state is TrialState.FAIL


def test_a_lock_is_not_waited_for_for_ever(server, database, open_one, trial, shorten):
    shorten("lock_timeout")
    storage = open_one()
    with server.connect(database) as holder, holder.transaction():
        holder.execute(LOCK_TRIALS)
        with pytest.raises(StorageInternalError) as caught:
            storage.set_trial_state_values(trial, TrialState.FAIL)
    assert opening.is_away(caught.value)
    assert storage.set_trial_state_values(trial, TrialState.FAIL)


def test_an_answer_is_not_waited_for_for_ever(open_one, shorten):
    shorten("statement_timeout")
    storage = open_one()
    with storage.engine.connect() as connection, pytest.raises(sqlalchemy.exc.DBAPIError) as caught:
        connection.execute(sqlalchemy.text("SELECT pg_sleep(60)"))
    assert opening.is_away(caught.value)


def test_a_users_own_options_count(open_one, monkeypatch):
    """PGOPTIONS changes what it names, and options in the URL stand alone."""
    assert settings_of(open_one()) == opening.SERVER_LIMITS
    monkeypatch.setenv("PGOPTIONS", "-c lock_timeout=3s")
    assert settings_of(open_one()) == opening.SERVER_LIMITS | {"lock_timeout": "3s"}
    unlimited = dict.fromkeys(opening.SERVER_LIMITS, "0")
    assert settings_of(open_one("?options=-c%20lock_timeout%3D4s")) == unlimited | {"lock_timeout": "4s"}
