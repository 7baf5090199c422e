"""Files that the user names: a sentence for whatever is wrong, and no waiting."""

import errno
import gzip
import os
import threading
from pathlib import Path

import pytest

from autorecompute.errors import SetupError, UsageError
from autorecompute.paths import FAULTS_OF_THE_MACHINE, is_file, names_in, open_named, shown, write_named

ADVICE = "Give another one."


def _loop(place):
    place.symlink_to(place.name)
    return place


def _pipe(place):
    os.mkfifo(place)
    return place


def _link_to_a_pipe(place):
    place.symlink_to(_pipe(place.with_name("pipe")))
    return place


def _folder(place):
    place.mkdir()
    return place


def _too_long(place):
    return place.with_name("n" * 300)


def _below_a_file(place):
    place.touch()
    return place / "below"


WRONG = [_loop, _pipe, _link_to_a_pipe, _folder, _too_long, _below_a_file]


@pytest.mark.parametrize("make", WRONG)
def test_a_place_for_no_file_is_told_before_anything_is_written(tmp_path, make):
    """Nothing is made beside it, and the path is in the sentence."""
    place = make(tmp_path / "place")
    before = set(tmp_path.rglob("*"))
    with pytest.raises(UsageError, match="'"):
        write_named(place, b"text", force=True)
    assert set(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("make", [*WRONG, lambda place: place])
def test_what_cannot_be_read_is_told_with_what_to_do(tmp_path, make):
    """A pipe that nobody writes is not waited for, behind a link neither."""
    with pytest.raises(UsageError, match=ADVICE):
        open_named(make(tmp_path / "place"), ADVICE)


def test_a_pipe_of_the_shells_is_read(tmp_path):
    """What <(command) stands for is read to its end."""
    reading, writing = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(writing, b"text"), os.close(writing)))
    writer.start()
    with open_named(Path(f"/dev/fd/{reading}"), ADVICE) as stream:
        assert stream.read() == b"text"
    writer.join()
    os.close(reading)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["n" * 255, "with space", "new\nline", "\udcff", "-o"])
def test_a_file_is_written_under_any_name_that_there_can_be(tmp_path, name):
    """A name as long as one can be, and one that is no UTF-8, are names."""
    write_named(tmp_path / name, b"text", force=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"text"


def test_a_file_is_replaced_only_where_that_is_wanted(tmp_path):
    """What is there stays without force, behind a link as well."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="--force"):
            write_named(tmp_path / name, b"text", force=False)
    write_named(tmp_path / "link", gzip.compress(b"text"), force=True)
    assert (tmp_path / "link").is_symlink()
    assert gzip.decompress((tmp_path / "file").read_bytes()) == b"text"


def test_a_folder_that_is_not_there_is_named(tmp_path):
    """It is the folder that is missing, and it is not made."""
    with pytest.raises(UsageError, match=r"There is no folder '.*nowhere'"):
        write_named(tmp_path / "nowhere" / "file", b"text", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_is_the_machines_fault(tmp_path, no_file_longer_than):
    """The path is right: the code is that of the machine, and nothing is left."""
    with no_file_longer_than(1), pytest.raises(SetupError, match="on another one"):
        write_named(tmp_path / "file", b"text", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_read_only_is_the_machines_fault(small_disk):
    """``-o`` there has the code that ``tune`` has there."""
    small_disk.forbid_writing()
    with pytest.raises(SetupError, match="Read-only file system"):
        write_named(small_disk.folder / "file", b"text", force=False)
    assert errno.EROFS in FAULTS_OF_THE_MACHINE


@pytest.mark.parametrize(
    ("path", "text"),
    [("a", "'a'"), ("a\nb", "'a\\nb'"), ("a\u200fb", "'a\\u200fb'"), ("\udcff", "'\\udcff'"), ("ü b", "'ü b'")],
)
def test_a_path_is_shown_on_one_line_with_all_that_is_in_it(path, text):
    """Neither a line break nor a sign that cannot be seen stands in a message as it is."""
    assert shown(path) == shown(Path(path)) == text


def test_a_long_path_is_shown_by_its_ends():
    """A message stays a sentence."""
    assert shown("b" + "a" * 9000 + "e").startswith("'ba")
    assert shown("b" + "a" * 9000 + "e").endswith("ae'")
    assert len(shown("a" * 9000)) < 200


def test_what_cannot_be_reached_is_no_file(tmp_path):
    """A name that is too long is asked about like any other."""
    assert not is_file(tmp_path / ("n" * 300))
    assert not is_file(_loop(tmp_path / "loop"))


def test_a_folder_that_cannot_be_read_is_told(tmp_path):
    """One that is not there is as good as empty, and so is a file; a circle of links is neither."""
    (tmp_path / "file").touch()
    assert names_in(tmp_path) == ["file"]
    assert names_in(tmp_path / "nowhere") == names_in(tmp_path / "file") == []
    with pytest.raises(SetupError, match="cannot be read"):
        names_in(_loop(tmp_path / "loop"))
