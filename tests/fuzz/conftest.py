import pytest

CASES = 2000


def pytest_addoption(parser):
    parser.addoption("--fuzz-cases", type=int, default=CASES, metavar="N", help="make so many changes at random")


@pytest.fixture
def fuzz_cases(pytestconfig):
    # A pytest that is not given this folder reads this file too late for the option.
    return pytestconfig.getoption("--fuzz-cases", CASES)
