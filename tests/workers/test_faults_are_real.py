"""What the other tests here break, is broken for real."""

import psycopg
import pytest

from workers.server import url_of


def test_a_restart_ends_connections_and_keeps_what_was_written(server, database):
    """Whoever was connected is not any more, and what was committed is there."""
    with server.connect(database) as before:
        before.execute("CREATE TABLE kept (number integer)")
        server.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(url_of(database, server.port))
        server.start()
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    with server.connect(database) as after:
        assert after.execute("SELECT count(*) FROM kept").fetchone() == (0,)


def test_a_connection_is_cut_and_mended(database, proxy):
    """A cut connection is dropped and a new one refused, until it is mended."""
    url = url_of(database, proxy.port)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
        proxy.cut()
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="refused"):
        psycopg.connect(url)
    proxy.mend()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_held_connection_says_nothing(database, proxy):
    """Nobody learns that a held connection is one: what is asked is not answered, and goes on once it is released."""
    with psycopg.connect(url_of(database, proxy.port)) as connection:
        proxy.hold()
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(url_of(database, proxy.port), connect_timeout=2)
        proxy.release()
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_everybody_needs_the_password(server, database):
    """Another password is refused, and so is none."""
    for password in ("another", ""):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(url_of(database, server.port, password))
