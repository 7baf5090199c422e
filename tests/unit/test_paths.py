import errno
import gzip
import os
import threading
from pathlib import Path

import pytest

from autorecompute.errors import SetupError, UsageError
from autorecompute.files import FAULTS_OF_THE_MACHINE, open_named, shown, write_named, write_whole
from autorecompute.measurement import Outcome
from autorecompute.studies import StudyFolder

ADVICE = "Give another one."


def test_a_pipe_of_the_shells_is_read(tmp_path):
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
    write_named(tmp_path / name, b"text", force=False)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_bytes() == b"text"


def test_a_file_is_replaced_only_where_that_is_wanted_and_a_folder_that_is_not_there_is_named(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "link"):
        with pytest.raises(UsageError, match="--force"):
            write_named(tmp_path / name, b"text", force=False)
    write_named(tmp_path / "link", gzip.compress(b"text"), force=True)
    assert (tmp_path / "link").is_symlink()
    assert gzip.decompress((tmp_path / "file").read_bytes()) == b"text"
    with pytest.raises(UsageError, match=r"There is no folder '.*nowhere'"):
        write_named(tmp_path / "nowhere" / "file", b"text", force=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_disk_that_takes_no_more_is_the_machines_fault(tmp_path, no_file_longer_than):
    with no_file_longer_than(1), pytest.raises(SetupError, match="on another one"):
        write_named(tmp_path / "file", b"text", force=False)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_is_read_only_is_the_machines_fault(small_disk):
    small_disk.forbid_writing()
    with pytest.raises(SetupError, match="Read-only file system"):
        write_named(small_disk.folder / "file", b"text", force=False)
    assert errno.EROFS in FAULTS_OF_THE_MACHINE


@pytest.mark.parametrize(
    ("path", "text"),
    [("a", "'a'"), ("a\nb", "'a\\nb'"), ("a\u200fb", "'a\\u200fb'"), ("\udcff", "'\\udcff'"), ("ü b", "'ü b'")],
)
def test_a_path_is_shown_on_one_line_with_all_that_is_in_it(path, text):
    assert shown(path) == shown(Path(path)) == text


def test_a_long_path_is_shown_by_its_ends():
    assert shown("b" + "a" * 9000 + "e").startswith("'ba")
    assert shown("b" + "a" * 9000 + "e").endswith("ae'")
    assert len(shown("a" * 9000)) < 200


def test_what_is_durable_outlives_a_loss_of_power_after_which_a_study_knows_what_it_measured(
    tmp_path, monkeypatch, make_trial
):
    """Nothing else waits for the disk. The next session has to tell a trial that the machine took with it."""
    flushed, fsync = {}, os.fsync

    def flush(descriptor):
        fsync(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        inode = os.fstat(descriptor).st_ino
        flushed[inode] = [path.name for path in place.iterdir()] if place.is_dir() else place.read_bytes()

    def lose_power(folder):
        """Leaves of every file what was flushed, and of every new name what its folder was flushed with."""
        for path in folder.iterdir():
            if path.name in flushed.get(folder.stat().st_ino, []):
                path.write_bytes(flushed.get(path.stat().st_ino, b""))
            else:
                path.unlink()

    monkeypatch.setattr(os, "fsync", flush)
    write_whole(tmp_path / "study.json", "all of it", is_durable=True)
    lose_power(tmp_path)
    assert (tmp_path / "study.json").read_text() == "all of it"
    write_whole(tmp_path / "page.html", "all of it")
    lose_power(tmp_path)
    assert not (tmp_path / "page.html").exists()
    folder = StudyFolder("bert", tmp_path)
    folder.path.mkdir()
    trial = make_trial(outcome=Outcome.LOST)
    folder.begin_trial(trial)
    lose_power(folder.path)
    assert folder.trial_in_progress() == trial


def test_writers_with_one_process_id_do_not_meet(tmp_path, monkeypatch):
    """Two at once, as in containers that share a folder and count their processes alike: the later one's text stays."""
    file, write_bytes, others = tmp_path / "result.json", Path.write_bytes, ["the other's"]

    def write_beside_another(path, content):
        written = write_bytes(path, content)
        if others:
            write_whole(file, others.pop())
        return written

    monkeypatch.setattr(Path, "write_bytes", write_beside_another)
    write_whole(file, "mine")
    assert file.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [file]
