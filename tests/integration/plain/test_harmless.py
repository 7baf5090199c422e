import pytest

from swapped import LEFT_ALONE, TUNED, train_beside, train_plainly


@pytest.fixture
def train(tmp_path):
    def train(command):
        plain, beside = tmp_path / "plain", tmp_path / "beside"
        plain.mkdir()
        beside.mkdir()
        return train_plainly(command, plain), train_beside(command, beside)

    return train


@pytest.mark.parametrize("command", TUNED)
def test_swapped_configs_change_no_bit(command, train):
    plain, beside = train(command)
    assert "weights" in plain.stdout, plain.stderr
    assert (beside.code, beside.digests) == (plain.code, plain.digests), beside.stderr
    assert len(beside.configs) > 1


@pytest.mark.parametrize("command", LEFT_ALONE)
def test_what_is_left_alone_changes_no_bit(command, train):
    plain, beside = train(command)
    assert "weights" in plain.stdout, plain.stderr
    assert (beside.code, beside.digests) == (plain.code, plain.digests), beside.stderr
    assert not beside.configs
