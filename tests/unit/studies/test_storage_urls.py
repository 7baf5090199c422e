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
    assert sqlalchemy.make_url(url.database).drivername == "postgresql+psycopg"
    for shown in (repr(url), url.database, url.display):
        assert SECRET not in shown
        assert QUOTED not in shown


def test_other_options_reach_the_driver():
    assert sqlalchemy.make_url(parse_storage(URLS["dialect"]).database).query == {"sslmode": "require"}


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
        (f"postgresql//ada:{QUOTED}", FORMS),
        ("postgresql://ada:fir5t@s3cr3t@host/db", "as %40"),
        ("postgresql://ada:fir5t@9/s3cr3t@host/db", "as %40"),
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


def test_what_is_empty_is_no_storage():
    with pytest.raises(UsageError, match=r"^THERE is empty\. .*leave it away"):
        parse_storage("", "THERE")


def test_a_server_that_is_not_there_is_told_without_the_password():
    url = parse_storage("postgresql://ada:s3cr3t@127.0.0.1:1/studies")
    with pytest.raises(SetupError, match=r"postgresql://ada@127.0.0.1:1/studies cannot be used: .*refused") as caught:
        open_study(url, "bert")
    assert "s3cr3t" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_driver_that_repeats_a_password_is_corrected():
    url = parse_storage("postgresql://ada:s3cr3t@127.0.0.1:1/studies")
    assert "s3cr3t" not in describe(url, OSError(5, "cannot log in with s3cr3t"))


def test_a_missing_driver_is_told_with_the_command_that_brings_it(monkeypatch):
    monkeypatch.setattr("autorecompute.studies.sharing.opening.importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r'pip install "autorecompute\[postgresql\]"'):
        open_study(parse_storage("postgresql://ada@127.0.0.1/studies"), "bert")


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("file/log", r"journal:.*/file/log cannot be used: there is a file where its folder"),
        ("file", "it is no journal"),
    ],
)
def test_a_place_of_no_journal_is_left_alone(tmp_path, place, words):
    (tmp_path / "file").write_text("no journal\n")
    with pytest.raises(SetupError, match=words):
        open_study(parse_storage(f"journal:{tmp_path}/{place}"), "bert")
    assert (tmp_path / "file").read_text() == "no journal\n"
