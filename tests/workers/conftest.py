"""Storages that several workers share: a PostgreSQL that can be restarted and lost, and a journal."""

import itertools

import pytest

from workers.proxy import Proxy
from workers.server import PASSWORD, QUOTED_PASSWORD, Server, url_of


@pytest.fixture(scope="session")
def server():
    """A PostgreSQL that runs."""
    server = Server()
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


@pytest.fixture
def make_database(server):
    """Makes empty databases, and gives the name of each."""

    def make():
        name = f"study{next(_NUMBERS)}"
        server.make_database(name)
        return name

    return make


@pytest.fixture
def database(make_database):
    """The name of an empty database."""
    return make_database()


@pytest.fixture
def make_proxy(server):
    """Makes connections to the server that can be lost."""
    proxies = []

    def make():
        proxies.append(Proxy(server.port))
        return proxies[-1]

    yield make
    for proxy in proxies:
        proxy.release()
        proxy.cut()


@pytest.fixture
def proxy(make_proxy):
    """A connection to the server that can be lost."""
    return make_proxy()


@pytest.fixture
def journal(tmp_path):
    """The URL of a journal that is not there yet."""
    return f"journal:{tmp_path / 'journal.log'}"


@pytest.fixture
def database_url(server, database):
    """The URL of an empty database."""
    return url_of(database, server.port)


@pytest.fixture
def storages(journal, database_url):
    """An empty storage of each kind, by its name."""
    return {"journal": journal, "postgresql": database_url}


@pytest.fixture(autouse=True)
def assert_untold(tmp_path):
    """After each test no file of it holds the password, as it is or as a URL has it."""
    yield
    for file in tmp_path.rglob("*"):
        if file.is_file():
            content = file.read_bytes()
            assert PASSWORD.encode() not in content, file
            assert QUOTED_PASSWORD.encode() not in content, file


_NUMBERS = itertools.count()
