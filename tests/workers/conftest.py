"""Storages that several workers share: a PostgreSQL that can be restarted and lost, and a journal."""

from __future__ import annotations

import itertools

import pytest

from workers.proxy import Proxy
from workers.server import Server


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
def proxy(server):
    """A connection to the server that can be lost."""
    proxy = Proxy(server.port)
    yield proxy
    proxy.release()
    proxy.cut()


_NUMBERS = itertools.count()
