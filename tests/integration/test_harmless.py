"""Configs that are swapped while a script trains change nothing of what it computes."""

import pytest

from swapped import LEFT_ALONE, TUNED, train_beside, train_plainly


@pytest.fixture
def train(tmp_path):
    """Trains with the tool and without, each in a folder of its own."""

    def train(command):
        plain, beside = tmp_path / "plain", tmp_path / "beside"
        plain.mkdir()
        beside.mkdir()
        return train_plainly(command, plain), train_beside(command, beside)

    return train


@pytest.mark.parametrize("command", TUNED)
def test_swapped_configs_change_no_bit(command, train):
    """Losses, weights, optimizer states, buffers and random numbers are those without; several configs were on."""
    plain, beside = train(command)
    assert "weights" in plain.stdout, plain.stderr
    assert (beside.code, beside.digests) == (plain.code, plain.digests), beside.stderr
    assert len(beside.configs) > 1


@pytest.mark.parametrize("command", LEFT_ALONE)
def test_what_is_left_alone_changes_no_bit(command, train):
    """The search ends, and the script goes on as without it."""
    plain, beside = train(command)
    assert "weights" in plain.stdout, plain.stderr
    assert (beside.code, beside.digests) == (plain.code, plain.digests), beside.stderr
    assert not beside.configs
