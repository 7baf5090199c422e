import fcntl
import json
import os
import shutil
import stat
import subprocess

import pytest

from autorecompute.emit import hand_out
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import StudyFolder, list_studies
from autorecompute.studies.folder import LOCK, using, write_atomically
from stand_ins.studies import keep_study


@pytest.fixture
def begin(make_detection):
    return lambda root, name="bert": keep_study(root, make_detection(), name=name)


@pytest.fixture
def folder(begin, tmp_path):
    return begin(tmp_path)


LEADING_AWAY = ("", ".", "..", ".hidden", "a/b", "/a", "a/../../b")
UNSEEN = (" a", "a ", "a\u200bb", "\ufeffa", "\u00a0", "a\nb", "\udcff", "\u3164", "a\u034fb")


@pytest.mark.parametrize("name", [*LEADING_AWAY, *UNSEEN, "-a", "a" * 300])
def test_a_name_is_a_word_that_can_be_seen_and_typed(tmp_path, name):
    with pytest.raises(UsageError, match="cannot name a study"):
        StudyFolder(name, tmp_path)


@pytest.mark.parametrize("name", ["bert", "a b", "größe", "bert-b48", "v1.2", "模型"])
def test_a_name_may_be_of_any_script(tmp_path, name):
    assert StudyFolder(name, tmp_path).path == tmp_path / name


def test_who_needs_an_answer_that_is_not_there_is_told_what_to_do(folder, tmp_path):
    assert folder.result() is None
    with pytest.raises(UsageError, match="no answer yet"):
        StudyFolder("bert", tmp_path).require_result()
    with pytest.raises(UsageError, match=r"'gpt'.*autorecompute show"):
        StudyFolder("gpt", tmp_path).require_result()


def test_a_study_that_was_moved_and_copied_names_its_own_plans_file(folder, make_result, tmp_path):
    folder.finish(make_result())
    folder.prepare()
    shutil.copytree(folder.path, tmp_path / "copied")
    folder.path.rename(tmp_path / "moved")
    for name in ("copied", "moved"):
        assert StudyFolder(name, tmp_path).require_result().best == make_result().best
        rendered = hand_out(StudyFolder(name, tmp_path), make_result())
        assert rendered.variables == {"FAKE_PLANS": str(tmp_path / name / "best" / "plans.json")}


def test_a_write_that_fails_leaves_the_old_content(folder, no_file_longer_than):
    file = folder.path / "notes.json"
    write_atomically(file, "old")
    before = sorted(folder.path.iterdir())
    with no_file_longer_than(4096), pytest.raises(SetupError, match=r"notes\.json"):
        write_atomically(file, "new" * 100_000)
    assert file.read_text() == "old"
    assert sorted(folder.path.iterdir()) == before


def test_a_place_below_a_file_is_told(tmp_path):
    (tmp_path / "studies").write_text("not a folder")
    with pytest.raises(SetupError, match="a file stands where a folder is needed"):
        StudyFolder("bert", tmp_path / "studies").prepare()


def test_a_trial_can_be_understood_from_its_folder(folder, make_trial):
    command, environment = ["python", "train.py", "--note", "two words"], {"FAKE_MODE": "whole"}
    folder.keep_trial(make_trial(number=12, peak_bytes=77), command, environment, "line 1\nü \ufffd\n")
    kept = folder.trial(12)
    typed = f"printf '%s\\n' {(kept / 'command.txt').read_text()}"
    words = subprocess.run(["/bin/sh", "-c", typed], capture_output=True, text=True, check=True)
    assert words.stdout.splitlines() == command
    assert json.loads((kept / "environment.json").read_text()) == environment
    assert (kept / "output.log").read_text() == "line 1\nü \ufffd\n"
    assert json.loads((kept / "result.json").read_text())["measurement"]["peak_bytes"] == 77
    folder.keep_trial(make_trial(), ["python", "caf\udce9.py"], {}, "")


def test_a_study_stays_out_of_the_users_repository(tmp_path, begin):
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    begin(tmp_path / "studies")
    status = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""


def test_studies_are_listed_by_name_and_nothing_else_is(tmp_path, begin):
    assert list_studies(tmp_path / "studies") == []
    for name in ("gpt", "bert", "old"):
        begin(tmp_path, name)
    (tmp_path / "old").rename(tmp_path / ".trash")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [folder.name for folder in list_studies(tmp_path)] == ["bert", "gpt"]
    assert list_studies(tmp_path / "notes.txt") == []
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(SetupError, match="cannot be read"):
        list_studies(tmp_path / "loop")


def test_other_users_cannot_hold_a_study_and_a_link_in_place_of_the_lock_is_not_followed(folder, tmp_path):
    reading = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(reading, fcntl.LOCK_EX)
    with using(folder):
        assert stat.S_IMODE((folder.path / LOCK).stat().st_mode) == 0o600
    os.close(reading)
    (folder.path / LOCK).unlink()
    (folder.path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="work in another folder"), using(folder):
        pytest.fail("a link was held")
    assert not (tmp_path / "elsewhere").exists()
