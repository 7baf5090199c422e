"""A journal that several write to, when a line of it was not written whole."""

import pytest

from autorecompute.studies.sharing import parse_storage
from autorecompute.studies.sharing.opening import open_study


@pytest.fixture
def file(tmp_path):
    """Where the journal is."""
    return tmp_path / "journal"


@pytest.fixture
def open_one(file):
    """Opens the study for one more worker."""
    return lambda: open_study(parse_storage(f"journal:{file}"), "bert")[0]


def test_a_disk_that_was_full_costs_what_could_not_be_written(file, open_one, no_file_longer_than):
    """After half a line all that was written before is there, and all workers write and read on."""
    first, second = open_one(), open_one()
    first.set_user_attr("before", 1)
    size = file.stat().st_size
    with no_file_longer_than(size + 20), pytest.raises(OSError, match="File too large"):
        first.set_user_attr("lost", 1)
    assert file.stat().st_size > size
    assert second.user_attrs == {"before": 1}
    second.set_user_attr("after", 1)
    first.set_user_attr("lost", 2)
    expected = {"before": 1, "after": 1, "lost": 2}
    assert first.user_attrs == second.user_attrs == open_one().user_attrs == expected


def test_whole_lines_stay_as_they_are(file, open_one):
    """What was written whole is neither changed nor cut by another line."""
    open_one().set_user_attr("before", 1)
    content = file.read_bytes()
    open_one().set_user_attr("after", 1)
    assert file.read_bytes().startswith(content)
