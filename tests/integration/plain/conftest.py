import pytest


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_python):
    """All of these start warm."""


@pytest.fixture(scope="module")
def place(make_plain_copy):
    """A working directory with a study that has an answer, for all tests of a file."""
    return make_plain_copy("place")
