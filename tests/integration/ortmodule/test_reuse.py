"""A tuning that starts from a study that comes with autorecompute."""

from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "studies" / "bert_mlm" / "train.py"
SHIPPED = "warm start from study bert_mlm"


@pytest.mark.parametrize("options", [(), ("--fresh",)], ids=["by default", "fresh"])
def test_another_batch_starts_from_the_shipped_study(workplace, options):
    """The same script at a batch that fits says where it starts from, unless it is told not to look."""
    limits = ("--target-batch", "4", "--memory-limit", "100GiB", "--json")
    tuned = workplace.tune(SCRIPT, *limits, *options, arguments=("--ortmodule",))
    assert tuned.code == 0, tuned.stderr
    source = tuned.answer["transferred_from"]
    if options:
        assert source is None
        assert SHIPPED not in tuned.stderr
    else:
        assert source["study"] == "bert_mlm"
        assert any("batch 4, not 32" in difference for difference in source["differences"])
        assert SHIPPED in tuned.stderr
