import pytest


@pytest.fixture(scope="module", autouse=True)
def _warm(warm_python):
    """All of these start warm."""


@pytest.fixture
def train_alike(workplace, begin, train_plainly):
    """Trains with the tool to the same end as without it; gives how it went."""

    def train(study, *arguments, **options):
        finished, plain = workplace.finish(begin(workplace, study, *arguments, **options)), train_plainly(*arguments)
        assert (finished.code, finished.stdout) == (plain.code, plain.stdout), finished.stderr
        return finished

    return train
