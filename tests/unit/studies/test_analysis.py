"""What a study hands on of its profiled steps."""

import pytest

from autorecompute import codec
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.studies.analysis import FILE, share

PRIME = 7


@pytest.fixture
def profiled(tmp_path, make_step):
    """Builds the folder of a study whose steps were profiled at a batch."""

    def build(name, batch):
        folder = StudyFolder(name, tmp_path)
        folder.prepare()
        profile = make_step("fl", ("x", 0, 1, "batch"), batch=batch)
        entry = {"config": codec.to_plain(Config()), "profile": codec.to_plain(profile)}
        folder.write(FILE, {"peak_bytes": 700, "held_bytes": 500, "profiles": [entry]})
        return folder

    return build


@pytest.fixture
def empty(tmp_path):
    """The folder of a study that has just begun."""
    folder = StudyFolder("new", tmp_path)
    folder.prepare()
    return folder


def test_steps_of_the_prime_batch_are_handed_on(profiled, empty):
    """They tell of any batch; what the study has itself stays."""
    known = profiled("b8", PRIME)
    share(known, empty, PRIME)
    assert (empty.path / FILE).read_text() == (known.path / FILE).read_text()
    other = profiled("b4", 4)
    before = (other.path / FILE).read_text()
    share(known, other, PRIME)
    assert (other.path / FILE).read_text() == before


@pytest.mark.parametrize("batch", [1, 2])
def test_steps_of_a_smaller_batch_stay_where_they_are(profiled, empty, batch):
    """At a batch of one every size seems constant, at one of two half of them seem to grow: a larger one is misled."""
    share(profiled("small", batch), empty, PRIME)
    assert not (empty.path / FILE).exists()
