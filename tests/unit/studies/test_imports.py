import errno
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import importing
from autorecompute.studies.records import write_records
from stand_ins.archives import take, written


def test_a_study_is_replaced_only_where_that_is_wanted(archive, elsewhere):
    file = written(elsewhere, archive)
    folder = take(file)
    mark = folder.workers / "07.log"
    mark.write_text("kept")
    with pytest.raises(UsageError, match="--force"):
        take(file)
    assert mark.exists()
    take(file, force=True)
    assert not mark.exists()
    assert [path.name for path in Path("studies").iterdir()] == ["bert"]


@pytest.mark.parametrize("force", [False, True])
def test_of_two_imports_at_once_none_replaces_the_other_unasked(archive, elsewhere, force, monkeypatch):
    file = written(elsewhere, archive)

    def write_slowly(records, folder):
        monkeypatch.setattr(importing, "write_records", write_records)
        (take(file, force=force).path / "first.txt").touch()
        write_records(records, folder)

    monkeypatch.setattr(importing, "write_records", write_slowly)
    if force:
        take(file, force=True)
        assert not Path("studies/bert/first.txt").exists()
    else:
        with pytest.raises(UsageError, match="meanwhile"):
            take(file)
        assert Path("studies/bert/first.txt").exists()
    assert [path.name for path in Path("studies").iterdir()] == ["bert"]


def test_a_study_outlives_an_import_that_fails(archive, elsewhere, monkeypatch):
    file = written(elsewhere, archive)
    (take(file).workers / "07.log").write_text("kept")
    rename = Path.rename

    def rename_once(path, target):
        if path.parent.name.startswith(importing.DRAFT_PREFIX) and not path.name.endswith(".replaced"):
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", rename_once)
    with pytest.raises(SetupError):
        take(file, force=True)
    assert (Path("studies/bert/workers") / "07.log").read_text() == "kept"
    assert [path.name for path in Path("studies").iterdir()] == ["bert"]


def test_a_study_in_use_is_not_replaced(archive, elsewhere):
    folder = take(written(elsewhere, archive))
    hold = [sys.executable, "-c", "import sys; file = open(sys.argv[1]); print(flush=True); input()", folder.database]
    with subprocess.Popen(hold, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        holder.stdout.readline()
        with pytest.raises(UsageError, match=f"Process {holder.pid} is using"):
            take(elsewhere / "a.jsonl", force=True)
        holder.kill()
    take(elsewhere / "a.jsonl", force=True)


def test_a_full_disk_leaves_the_old_study(archive, elsewhere, small_disk, monkeypatch):
    file = written(elsewhere, archive)
    monkeypatch.chdir(small_disk.folder)
    take(file)
    before = set(Path("studies/bert").iterdir())
    small_disk.fill()
    with pytest.raises(SetupError, match="disk is full"):
        take(file, force=True)
    small_disk.free()
    assert [path.name for path in Path("studies").iterdir()] == ["bert"]
    assert set(Path("studies/bert").iterdir()) == before
