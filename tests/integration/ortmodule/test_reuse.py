"""A tuning that starts from a study that comes with autorecompute."""

from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "studies" / "bert_mlm" / "train.py"


def test_another_batch_starts_from_the_shipped_study(workplace):
    """The same script at a batch that fits says where it starts from."""
    limits = ("--target-batch", "4", "--memory-limit", "100GiB", "--json")
    tuned = workplace.tune(SCRIPT, *limits, arguments=("--ortmodule",))
    assert tuned.code == 0, tuned.stderr
    source = tuned.answer["transferred_from"]
    assert source["study"] == "bert_mlm"
    assert any("batch 4, not 32" in difference for difference in source["differences"])
    assert "warm start from study bert_mlm" in tuned.stderr
