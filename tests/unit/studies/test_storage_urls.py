import pytest
import sqlalchemy

from autorecompute.errors import SetupError, UsageError
from autorecompute.studies.sharing import parse_storage
from autorecompute.studies.sharing.opening import describe, open_study

SECRET = "s3cr3t!@/%"  # noqa: S105  (of no server)
QUOTED = "s3cr3t%21%40%2F%25"
URLS = {
    "user": f"postgresql://ada:{QUOTED}@db.example:5433/studies",
    "option": f"postgresql://ada@db.example:5433/studies?password={QUOTED}",
    "dialect": f"postgresql+psycopg://ada:{QUOTED}@db.example:5433/studies?sslmode=require",
    "short": f"postgres://ada:{QUOTED}@db.example:5433/studies",
}


@pytest.mark.parametrize("text", URLS.values(), ids=URLS)
def test_a_password_is_for_the_driver_alone(text):
    url = parse_storage(text)
    assert url.secrets == {"password": SECRET}
    assert url.display == "postgresql://ada@db.example:5433/studies"
    database = sqlalchemy.make_url(url.database)
    assert database.drivername == "postgresql+psycopg"
    assert database.query == ({"sslmode": "require"} if "sslmode" in text else {})
    for shown in (repr(url), url.database, url.display):
        assert SECRET not in shown
        assert QUOTED not in shown


def test_a_journal_is_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = parse_storage("journal:shared/log")
    assert url.journal == tmp_path / "shared" / "log"
    assert url.display == f"journal:{tmp_path}/shared/log"


FORMS = "journal:PATH or postgresql://USER@HOST/DATABASE"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("journal:", FORMS),
        ("studies.db", FORMS),
        (f"mysql://ada:{QUOTED}@host/db", FORMS),
        (f"postgresql://ada:{QUOTED}@host", FORMS),
        (f"postgresql://ada:{QUOTED}@host:port/db", FORMS),
        ("postgresql://ada:fir5t@s3cr3t@host/db", "as %40"),
        ("postgresql://ada:fir5t@9/db?s3cr3t@host/db", "as %40"),
        ("postgresql://ada:s3cr3t:/?#%@host:/db", "as %2F"),
        ("journal:postgresql://ada:s3cr3t@host/db", "Leave journal: away"),
    ],
)
def test_what_is_no_address_is_not_repeated_but_told_how_to_write(text, words):
    with pytest.raises(UsageError, match=words) as caught:
        parse_storage(text)
    assert "s3cr3t" not in str(caught.value)
    assert "fir5t" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_driver_that_repeats_a_password_is_corrected():
    url = parse_storage("postgresql://ada:s3cr3t@127.0.0.1:1/studies")
    assert "s3cr3t" not in describe(url, OSError(5, "cannot log in with s3cr3t"))


def test_a_missing_driver_is_told_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("autorecompute.studies.sharing.opening.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r'pip install "autorecompute\[postgresql\]"'):
        open_study(parse_storage("postgresql://ada@127.0.0.1/studies"), "bert")
