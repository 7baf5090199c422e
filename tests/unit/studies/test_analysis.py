import pytest

from autorecompute import codec
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.studies.analysis import FILE, share

PRIME = 7


@pytest.fixture
def profiled(tmp_path, make_step):
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
    folder = StudyFolder("new", tmp_path)
    folder.prepare()
    return folder


def test_steps_of_the_prime_batch_are_handed_on(profiled, empty):
    known = profiled("b8", PRIME)
    share(known, empty, PRIME)
    assert (empty.path / FILE).read_text() == (known.path / FILE).read_text()
    other = profiled("b4", 4)
    before = (other.path / FILE).read_text()
    share(known, other, PRIME)
    assert (other.path / FILE).read_text() == before


@pytest.mark.parametrize("batch", [1, 2])
def test_steps_of_a_smaller_batch_stay_where_they_are(profiled, empty, batch):
    share(profiled("small", batch), empty, PRIME)
    assert not (empty.path / FILE).exists()
