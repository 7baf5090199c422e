"""What SQLite and Optuna would believe or change of a database that came with somebody else's folder."""

import os
import sqlite3
import struct
import subprocess
import sys

import pytest

from autorecompute.errors import SetupError
from autorecompute.studies.storage import TrialStore, read_trials

NAME, LIMIT = "bert", 2**30
MAGIC = bytes.fromhex("d9d505f920a163d7")
SECTOR = 512

WRITE_AND_DIE = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("PRAGMA cache_size = 1")
connection.execute("UPDATE trial_user_attributes SET value_json = 'gone'")
numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION SELECT i + 1 FROM n LIMIT 5000) SELECT * FROM n"
connection.execute(f"CREATE TABLE many AS {numbers}")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def trials(make_trial):
    """What the study measured."""
    return [make_trial()]


@pytest.fixture
def database(tmp_path, make_space, trials):
    """A database in a folder of its own."""
    file = tmp_path / "study" / "study.db"
    file.parent.mkdir()
    store = TrialStore(file, NAME, make_space(), LIMIT)
    for trial in trials:
        store.add(trial)
    return file


@pytest.fixture(params=["read", "write"])
def open_it(request, make_space):
    """Opens a database in one of the two ways."""
    return {
        "read": lambda file: read_trials(file, NAME),
        "write": lambda file: TrialStore(file, NAME, make_space(), LIMIT).trials,
    }[request.param]


def write_journal_naming(database, victim):
    """Leaves what SQLite leaves of a transaction over several databases, with this file to be deleted in the end."""
    page = struct.unpack(">H", database.read_bytes()[16:18])[0]
    name = os.fsencode(victim)
    head = MAGIC + struct.pack(">5I", 0, 1, database.stat().st_size // page, SECTOR, page)
    end = name + struct.pack(">2I", len(name), sum(name)) + MAGIC
    journal = database.with_name("study.db-journal")
    journal.write_bytes(head.ljust(SECTOR, b"\0") + struct.pack(">I", 2**30 // page + 1) + end)


def test_sqlite_deletes_what_a_journal_names(database, tmp_path):
    """This is why such a journal is refused: opening a database can cost any file of the user's."""
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    write_journal_naming(database, thesis)
    connection = sqlite3.connect(database)
    connection.execute("SELECT * FROM trials")
    connection.close()
    assert not thesis.exists()


def test_a_journal_that_names_another_file_is_refused(database, tmp_path, open_it):
    """Neither a reader nor a tuning lets SQLite delete it."""
    thesis = tmp_path / "thesis.txt"
    thesis.write_text("years of work")
    write_journal_naming(database, thesis)
    with pytest.raises(SetupError, match=r"study\.db-journal names another file"):
        open_it(database)
    assert thesis.exists()


@pytest.mark.parametrize("ending", ["-journal", "-wal", "-shm"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "is a link"),
        (os.mkfifo, "is no file"),
        (lambda path: path.mkdir(), "is no file"),
    ],
    ids=["link", "pipe", "folder"],
)
def test_what_lies_beside_it_is_a_file(database, open_it, ending, make, words):
    """SQLite would follow a link and wait for a pipe."""
    make(database.with_name(f"study.db{ending}"))
    with pytest.raises(SetupError, match=rf"study\.db{ending} {words}"):
        open_it(database)


def test_what_a_killed_process_was_writing_is_undone(database, open_it, trials):
    """Its journal is played back, whoever opens the database next."""
    subprocess.run([sys.executable, "-c", WRITE_AND_DIE, str(database)], check=False)
    assert database.with_name("study.db-journal").stat().st_size
    assert open_it(database) == trials


@pytest.mark.parametrize("statement", ["DELETE FROM alembic_version", "DROP TABLE trials", "DELETE FROM version_info"])
def test_a_reader_adds_nothing_to_a_database(database, statement):
    """What Optuna would make where it is missing is told as damage, and left as it is."""
    with sqlite3.connect(database) as connection:
        connection.execute(statement)
    connection.close()
    before = database.read_bytes()
    with pytest.raises(SetupError, match=r"cannot be used as a study.*left as it is"):
        read_trials(database, NAME)
    assert database.read_bytes() == before


def test_an_empty_file_has_no_trials(tmp_path):
    """A tuning that was ended before its first trial may leave one, which stays empty."""
    file = tmp_path / "study.db"
    file.touch()
    assert read_trials(file, NAME) == []
    assert file.read_bytes() == b""
