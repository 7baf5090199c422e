import itertools

import pytest

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
def database(server):
    """The name of an empty database."""
    name = f"study{next(_NUMBERS)}"
    server.make_database(name)
    return name


@pytest.fixture
def database_url(server, database):
    return url_of(database, server.port)


@pytest.fixture(params=["sqlite", "postgresql"])
def storage(request, tmp_path):
    """The URL of a storage of each kind; no server is started for a test that has a file, which is not there yet."""
    if request.param == "postgresql":
        return request.getfixturevalue("database_url")
    return f"sqlite:///{tmp_path / 'shared.db'}"


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
