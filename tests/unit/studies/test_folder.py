"""The folder of a study, and what becomes of it when the disk, a crash or another version was there."""

import json
import shutil
import subprocess

import pytest

from autorecompute.emit.handing import hand_out
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, StudyFolder, list_studies, load_result
from autorecompute.studies.folder import FORMAT
from autorecompute.studies.writing import write_atomically


@pytest.fixture
def problem(make_detection):
    """A problem."""
    return Problem.of(make_detection(), 2**30)


@pytest.fixture
def folder(tmp_path, problem):
    """A study that was begun."""
    folder = StudyFolder("bert", tmp_path)
    folder.prepare()
    folder.begin(problem, ["python", "train.py"])
    return folder


LEADING_AWAY = ("", ".", "..", ".hidden", "a/b", "/a", "a/../../b")
UNSEEN = (
    " ",
    " a",
    "a ",
    "\u200f",
    "a\u200fb",
    "a\u200bb",
    "\ufeffa",
    "\u00a0",
    "a\nb",
    "\udcff",
    "\ud800",
    "\u3164",
    "a\u034fb",
)


@pytest.mark.parametrize("name", [*LEADING_AWAY, *UNSEEN, "-a"])
def test_a_name_is_a_word_that_can_be_seen_and_typed(tmp_path, name):
    """A name that is a path, hides itself, is invisible in part, no text or an option is a wrong usage."""
    with pytest.raises(UsageError, match="cannot name a study"):
        StudyFolder(name, tmp_path)


@pytest.mark.parametrize("name", ["bert", "a b", "größe", "bert-b48", "v1.2", "模型"])
def test_a_name_may_be_of_any_script(tmp_path, name):
    """Letters of any language, digits, dots, dashes and spaces within name a study."""
    assert StudyFolder(name, tmp_path).path == tmp_path / name


def test_a_name_longer_than_a_file_system_takes_is_a_wrong_usage(tmp_path):
    """A name of 300 letters ends in a sentence."""
    with pytest.raises(UsageError):
        StudyFolder("a" * 300, tmp_path).head()


def test_a_study_says_what_it_is_about(folder, problem):
    """What was begun is read back: problem, digest and command."""
    head = folder.head()
    assert head.problem == folder.problem() == problem
    assert head.command == ("python", "train.py")
    assert json.loads((folder.path / "study.json").read_text())["digest"] == problem.digest


def test_a_study_that_was_copied_here_names_the_machine_that_began_it(folder):
    """Its provenance is what its file says, not what holds for a study that is begun here."""
    file = folder.path / "study.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "machine": "another"}))
    assert folder.provenance().machine == "another"


def test_a_study_that_is_not_there_is_a_wrong_usage(tmp_path):
    """The sentence names the study and the verb that lists those there are."""
    with pytest.raises(UsageError, match=r"'gpt'.*autorecompute show"):
        load_result("gpt", tmp_path)


def test_a_study_without_an_answer_is_told_apart(folder):
    """Before the answer there is none, and who needs one is told how to get it."""
    assert folder.result() is None
    with pytest.raises(UsageError, match="no answer yet"):
        load_result("bert", folder.path.parent)


def test_an_answer_comes_back(folder, make_result):
    """The answer is read as it was written, by name too."""
    folder.finish(make_result())
    assert folder.result() == load_result("bert", folder.path.parent) == make_result()


def test_a_study_that_was_moved_and_copied_names_its_own_plans_file(folder, make_result, tmp_path):
    """Wherever a study lies, its variables lead into it, and a copy's not into the folder it was copied from."""
    folder.finish(make_result())
    shutil.copytree(folder.path, tmp_path / "copied")
    folder.path.rename(tmp_path / "moved")
    for name in ("copied", "moved"):
        rendered = hand_out(StudyFolder(name, tmp_path), load_result(name, tmp_path))
        assert rendered.variables == {"FAKE_PLANS": str(tmp_path / name / "best" / "plans.json")}


@pytest.mark.parametrize("read", [StudyFolder.head, StudyFolder.problem, lambda f: load_result("bert", f.path.parent)])
@pytest.mark.parametrize("form", [FORMAT - 1, FORMAT + 1])
def test_another_versions_study_is_refused(folder, read, form):
    """A format that this version does not know is a wrong usage that names the version which made it."""
    file = folder.path / "study.json"
    content = json.dumps({**json.loads(file.read_text()), "format": form, "autorecompute": "9.8.7"})
    file.write_text(content)
    with pytest.raises(UsageError, match=r"9\.8\.7.*--study NAME") as caught:
        read(folder)
    assert caught.value.exit_code == 2
    assert file.read_text() == content


DAMAGES = {
    "empty": lambda _: b"",
    "cut in half": lambda content: content[: len(content) // 2],
    "not UTF-8": lambda content: b"\xff\xfe" + content,
    "text": lambda _: b"hello",
    "a number": lambda _: b"1",
    "a list": lambda _: b"[]",
    "null": lambda _: b"null",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_study_file_is_told_and_left_alone(folder, damage):
    """What is no study any more ends in a sentence that names the file, which keeps every byte."""
    file = folder.path / "study.json"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    damaged = file.read_bytes()
    for read in (folder.head, folder.problem):
        with pytest.raises(SetupError, match=r"study\.json cannot be read"):
            read()
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_answer_is_told_and_left_alone(folder, make_result, damage):
    """What is no answer any more ends in a sentence that names the file, which keeps every byte."""
    folder.finish(make_result())
    file = folder.path / "result.json"
    file.write_bytes(DAMAGES[damage](file.read_bytes()))
    damaged = file.read_bytes()
    with pytest.raises(SetupError, match=r"result\.json cannot be read"):
        folder.result()
    assert file.read_bytes() == damaged


@pytest.mark.parametrize("part", ["problem", "graph"])
def test_a_study_without_its_problem_is_told(folder, part):
    """JSON that lacks the problem, or a part of it, ends in a sentence too."""
    file = folder.path / "study.json"
    content = json.loads(file.read_text())
    (content if part in content else content["problem"]).pop(part)
    file.write_text(json.dumps(content))
    with pytest.raises(SetupError, match=r"study\.json cannot be read"):
        folder.problem()


def test_a_write_that_fails_leaves_the_old_content(folder, no_file_longer_than):
    """A write that breaks off in the middle leaves the file as it was, and no draft beside it."""
    file = folder.path / "notes.json"
    write_atomically(file, "old")
    before = sorted(folder.path.iterdir())
    with no_file_longer_than(4096), pytest.raises(SetupError, match=r"notes\.json"):
        write_atomically(file, "new" * 100_000)
    assert file.read_text() == "old"
    assert sorted(folder.path.iterdir()) == before


def test_a_reader_keeps_what_it_opened(folder):
    """A write over a file that others have open does not change what they read."""
    file = folder.path / "notes.json"
    write_atomically(file, "old")
    with file.open() as reader:
        write_atomically(file, "new")
        assert reader.read() == "old"
    assert file.read_text() == "new"


def test_others_may_read_what_the_users_umask_allows(folder):
    """A plans file is as readable as any file that the user makes: training may run under another account."""
    (folder.path / "plain").write_text("")
    file = folder.best / "plans.json"
    write_atomically(file, "[]")
    assert file.stat().st_mode == (folder.path / "plain").stat().st_mode


def test_a_full_disk_is_told_with_the_next_step(small_disk, problem, make_trial):
    """A trial that no longer fits on the disk ends in a sentence, and what was written before stays."""
    folder = StudyFolder("bert", small_disk.folder)
    folder.prepare()
    folder.begin(problem, ["python", "train.py"])
    small_disk.fill()
    with pytest.raises(SetupError, match=r"disk is full at .*0003.*free some space and run the same command"):
        folder.keep_trial(make_trial(number=3), ["python"], {}, "output" * 10_000)
    assert folder.problem() == problem
    small_disk.free()
    folder.keep_trial(make_trial(number=3), ["python"], {}, "output" * 10_000)
    assert not list(folder.path.rglob(".*.[0-9]*"))


def test_a_read_only_disk_is_told_and_can_be_read(small_disk, problem):
    """Nothing can be begun where nothing can be written, and what is there can still be read."""
    folder = StudyFolder("bert", small_disk.folder)
    folder.prepare()
    folder.begin(problem, ["python", "train.py"])
    small_disk.forbid_writing()
    with pytest.raises(SetupError, match="cannot be written: Read-only file system"):
        StudyFolder("gpt", small_disk.folder).prepare()
    with pytest.raises(SetupError, match="cannot be written"):
        folder.write("notes.json", {})
    assert folder.problem() == problem


def test_a_place_below_a_file_is_told(tmp_path):
    """A folder of studies that is a file ends in a sentence."""
    (tmp_path / "studies").write_text("not a folder")
    with pytest.raises(SetupError, match="a file stands where a folder is needed"):
        StudyFolder("bert", tmp_path / "studies").prepare()


def test_preparing_twice_loses_nothing(folder, make_result):
    """A second session finds what the first left."""
    folder.finish(make_result())
    folder.prepare()
    assert folder.exists()
    assert folder.result() == make_result()


def test_a_trial_can_be_understood_from_its_folder(folder, make_trial):
    """Command, environment and output are there as they were, and the figures are JSON."""
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
    """An argument of bytes that are no UTF-8 does not break off a tuning."""
    folder.keep_trial(make_trial(), ["python", "caf\udce9.py"], {}, "")


def test_a_study_stays_out_of_the_users_repository(tmp_path, problem):
    """In a git repository a study adds nothing to what git would commit."""
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    folder = StudyFolder("bert", tmp_path / "studies")
    folder.prepare()
    folder.begin(problem, ["python", "train.py"])
    status = subprocess.run(["git", "-C", str(tmp_path), "status", "--porcelain"], capture_output=True, check=True)
    assert status.stdout == b""


def test_studies_are_listed_by_name(tmp_path, problem):
    """Folders that hold a study are listed, in order; other folders and files are not, and no folder is no study."""
    assert list_studies(tmp_path / "studies") == []
    for name in ("gpt", "bert"):
        StudyFolder(name, tmp_path).prepare()
        StudyFolder(name, tmp_path).begin(problem, [])
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert [folder.name for folder in list_studies(tmp_path)] == ["bert", "gpt"]


def test_a_hidden_folder_hides_no_study(tmp_path, folder):
    """A study in a folder whose name begins with a dot, a backup for instance, does not break the list."""
    folder.path.rename(tmp_path / ".trash")
    folder.prepare()
    (folder.path / "study.json").write_bytes((tmp_path / ".trash" / "study.json").read_bytes())
    assert [folder.name for folder in list_studies(tmp_path)] == ["bert"]
