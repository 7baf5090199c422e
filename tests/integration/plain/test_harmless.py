import pytest

from swapped import LEFT_ALONE, TUNED, train_beside, train_plainly


@pytest.mark.parametrize("command", [*TUNED, *LEFT_ALONE])
def test_swapped_configs_change_no_bit(command, tmp_path):
    for name in ("plain", "beside"):
        (tmp_path / name).mkdir()
    plain, beside = train_plainly(command, tmp_path / "plain"), train_beside(command, tmp_path / "beside")
    assert "weights" in plain.stdout, plain.stderr
    assert (beside.code, beside.digests) == (plain.code, plain.digests), beside.stderr
    assert (len(beside.configs) > 1) == (command in TUNED)
    assert command in TUNED or not beside.configs
