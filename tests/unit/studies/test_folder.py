import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys

import pytest

from autorecompute.emit.handing import hand_out
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, StudyFolder, list_studies, load_result
from autorecompute.studies.folder import FORMAT
from autorecompute.studies.use import LOCK, find_user, using
from autorecompute.studies.writing import write_atomically
from stand_ins.studies import keep_study


@pytest.fixture
def problem(make_detection):
    return Problem.of(make_detection(), 2**30)


@pytest.fixture
def begin(make_detection):
    return lambda root, name="bert": keep_study(root, make_detection(), name=name)


@pytest.fixture
def folder(begin, tmp_path):
    return begin(tmp_path)


LEADING_AWAY = ("", ".", "..", ".hidden", "a/b", "/a", "a/../../b")
UNSEEN = (" ", " a", "a ", "\u200f", "a\u200bb", "\ufeffa", "\u00a0", "a\nb", "\udcff", "\ud800", "\u3164", "a\u034fb")


@pytest.mark.parametrize("name", [*LEADING_AWAY, *UNSEEN, "-a", "a" * 300])
def test_a_name_is_a_word_that_can_be_seen_and_typed(tmp_path, name):
    with pytest.raises(UsageError, match="cannot name a study"):
        StudyFolder(name, tmp_path)


@pytest.mark.parametrize("name", ["bert", "a b", "größe", "bert-b48", "v1.2", "模型"])
def test_a_name_may_be_of_any_script(tmp_path, name):
    assert StudyFolder(name, tmp_path).path == tmp_path / name


def test_a_study_says_what_it_is_about(folder, problem):
    head = folder.head()
    assert head.problem == folder.problem() == problem
    assert head.command == ("python", "train.py")
    assert json.loads((folder.path / "study.json").read_text())["digest"] == problem.digest


def test_a_study_that_was_copied_here_names_the_machine_that_began_it(folder):
    file = folder.path / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "another"}))
    assert folder.provenance().machine == "another"


def test_who_needs_an_answer_that_is_not_there_is_told_what_to_do(folder, tmp_path):
    assert folder.result() is None
    with pytest.raises(UsageError, match="no answer yet"):
        load_result("bert", tmp_path)
    with pytest.raises(UsageError, match=r"'gpt'.*autorecompute show"):
        load_result("gpt", tmp_path)


def test_an_answer_outlives_that_the_study_is_prepared_again(folder, make_result):
    folder.finish(make_result())
    folder.prepare()
    assert folder.exists()
    assert folder.result() == load_result("bert", folder.path.parent) == make_result()


def test_a_study_that_was_moved_and_copied_names_its_own_plans_file(folder, make_result, tmp_path):
    folder.finish(make_result())
    shutil.copytree(folder.path, tmp_path / "copied")
    folder.path.rename(tmp_path / "moved")
    for name in ("copied", "moved"):
        rendered = hand_out(StudyFolder(name, tmp_path), load_result(name, tmp_path))
        assert rendered.variables == {"FAKE_PLANS": str(tmp_path / name / "best" / "plans.json")}


@pytest.mark.parametrize("form", [FORMAT - 1, FORMAT + 1])
def test_another_versions_study_is_refused(folder, form):
    file = folder.path / "study.json"
    content = json.dumps({**json.loads(file.read_text()), "format": form, "autorecompute": "9.8.7"})
    file.write_text(content)
    for read in (folder.head, folder.problem, lambda: load_result("bert", folder.path.parent)):
        with pytest.raises(UsageError, match=r"9\.8\.7.*--study NAME"):
            read()
    assert file.read_text() == content


@pytest.mark.parametrize("damaged", [b"", json.dumps({"format": FORMAT}).encode(), b"\xff\xfe{}", b"null"])
@pytest.mark.parametrize(
    ("name", "read"), [("study.json", StudyFolder.head), ("result.json", StudyFolder.result)], ids=["study", "answer"]
)
def test_a_damaged_file_is_told_and_left_alone(folder, name, read, damaged):
    file = folder.path / name
    file.write_bytes(damaged)
    with pytest.raises(SetupError, match=f"{name} cannot be read"):
        read(folder)
    assert file.read_bytes() == damaged


def test_a_write_that_fails_leaves_the_old_content(folder, no_file_longer_than):
    file = folder.path / "notes.json"
    write_atomically(file, "old")
    before = sorted(folder.path.iterdir())
    with no_file_longer_than(4096), pytest.raises(SetupError, match=r"notes\.json"):
        write_atomically(file, "new" * 100_000)
    assert file.read_text() == "old"
    assert sorted(folder.path.iterdir()) == before


def test_others_may_read_what_the_users_umask_allows(folder):
    (folder.path / "plain").write_text("")
    file = folder.best / "plans.json"
    write_atomically(file, "[]")
    assert file.stat().st_mode == (folder.path / "plain").stat().st_mode


def test_a_full_disk_is_told_with_the_next_step(small_disk, begin, problem, make_trial):
    folder = begin(small_disk.folder)
    small_disk.fill()
    with pytest.raises(SetupError, match=r"disk is full at .*0003.*free some space and run the same command"):
        folder.keep_trial(make_trial(number=3), ["python"], {}, "output" * 10_000)
    assert folder.problem() == problem
    small_disk.free()
    folder.keep_trial(make_trial(number=3), ["python"], {}, "output" * 10_000)
    assert not list(folder.path.rglob(".*.[0-9]*"))


def test_a_read_only_disk_is_told_and_can_be_read(small_disk, begin, problem):
    folder = begin(small_disk.folder)
    small_disk.forbid_writing()
    with pytest.raises(SetupError, match="cannot be written: Read-only file system"):
        StudyFolder("gpt", small_disk.folder).prepare()
    with pytest.raises(SetupError, match="cannot be written"):
        folder.write("notes.json", {})
    assert folder.problem() == problem


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


def test_a_script_whose_name_is_not_utf8_can_be_kept(folder, make_trial):
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


HOLD = """
import sys
from pathlib import Path
from autorecompute.studies import StudyFolder
from autorecompute.studies.use import using

with using(StudyFolder("bert", Path(sys.argv[1]))):
    print("holding", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other(folder):
    command = [sys.executable, "-c", HOLD, str(folder.path.parent)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "holding\n"
        yield process
        process.kill()


def test_a_study_that_is_tuned_is_not_tuned_by_another_process(folder, other):
    assert find_user(folder) == other.pid
    with pytest.raises(UsageError, match=r"is using study 'bert'. Wait for it"), using(folder):
        pytest.fail("both tune")


def test_a_process_that_ends_or_is_killed_lets_go_of_its_study(folder, other):
    other.kill()
    other.wait()
    for _ in range(2):
        with using(folder):
            assert folder.path.is_dir()


def test_other_users_cannot_hold_a_study(folder):
    reading = os.open(folder.path, os.O_RDONLY)
    fcntl.flock(reading, fcntl.LOCK_EX)
    with using(folder):
        assert stat.S_IMODE((folder.path / LOCK).stat().st_mode) == 0o600
    os.close(reading)


def test_a_link_in_place_of_the_lock_is_not_followed(folder, tmp_path):
    (folder.path / LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="work in another folder"), using(folder):
        pytest.fail("a link was held")
    assert not (tmp_path / "elsewhere").exists()
