import pytest


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_python):
    """All of these start warm."""
