"""Files that several processes write."""

import os
from pathlib import Path

import pytest

from autorecompute.files import write_whole
from autorecompute.measurement import Outcome
from autorecompute.studies import StudyFolder


@pytest.fixture
def lose_power(monkeypatch):
    """Leaves of every file in a folder what was flushed, and of every new name what its folder was flushed with."""
    flushed, fsync = {}, os.fsync

    def flush(descriptor):
        fsync(descriptor)
        place = Path(f"/proc/self/fd/{descriptor}").resolve()
        inode = os.fstat(descriptor).st_ino
        flushed[inode] = [path.name for path in place.iterdir()] if place.is_dir() else place.read_bytes()

    def lose_power(folder):
        for path in folder.iterdir():
            if path.name in flushed.get(folder.stat().st_ino, []):
                path.write_bytes(flushed.get(path.stat().st_ino, b""))
            else:
                path.unlink()

    monkeypatch.setattr(os, "fsync", flush)
    return lose_power


def test_what_is_durable_outlives_a_loss_of_power(tmp_path, lose_power):
    """The text is on the disk before its name is, and the name when the call returns."""
    write_whole(tmp_path / "study.json", "all of it", is_durable=True)
    lose_power(tmp_path)
    assert (tmp_path / "study.json").read_text() == "all of it"


def test_a_study_knows_after_a_loss_of_power_what_it_measured(tmp_path, lose_power, make_trial):
    """Without it, the next session could not tell a trial that the machine took with it."""
    folder = StudyFolder("bert", tmp_path)
    folder.path.mkdir()
    trial = make_trial(outcome=Outcome.LOST)
    folder.begin_trial(trial)
    lose_power(folder.path)
    assert folder.trial_in_progress() == trial


def test_only_what_is_durable_waits_for_the_disk(tmp_path, lose_power):
    """Logs and pages are written anew."""
    write_whole(tmp_path / "page.html", "all of it")
    lose_power(tmp_path)
    assert not list(tmp_path.iterdir())


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
