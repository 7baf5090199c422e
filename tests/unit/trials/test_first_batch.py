import pytest

from autorecompute.training_job import Device
from autorecompute.trials.job import begins_too_large, known_loader
from autorecompute.units import GIB

PLAIN = {"versions": {"torch": "2.13.0", "backend": "torch"}, "plan_versions": ("torch",)}
CARD = Device(kind="cuda", name="Some Card", total_bytes=80 * GIB)


def test_a_worker_that_exports_begins_with_the_scripts_own_batch(make_detection):
    """In plain PyTorch every later worker has the target from its first step on."""
    plain, exported = make_detection(**PLAIN, loader="a1"), make_detection(loader="b2")
    assert (known_loader(plain, is_watched=False), known_loader(plain, is_watched=True)) == ("a1", "a1")
    assert (known_loader(exported, is_watched=False), known_loader(exported, is_watched=True)) == ("", "b2")
    assert known_loader(None, is_watched=True) == ""


@pytest.mark.parametrize(
    ("own", "fields", "is_too_large"),
    [
        (8, {}, True),
        (2, {}, False),
        (8, {"loader": ""}, False),
        (8, {"device": Device(kind="cpu", name="Some Processor", total_bytes=GIB)}, False),
    ],
    ids=["more", "less", "a loader that is not known", "a processor"],
)
def test_a_card_may_not_hold_the_scripts_own_batch(make_detection, own, fields, is_too_large):
    """Where the target is smaller."""
    found = {**PLAIN, "loader": "a1", "device": CARD, "dims": {"batch": own}, "batch": 4, **fields}
    assert begins_too_large(make_detection(**found)) is is_too_large
