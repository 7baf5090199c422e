"""What is removed of a study and what is written to it: files of its own, and nothing behind a link."""

import os
import shutil
from pathlib import Path

import pytest

from autorecompute.cli import main
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.contents import logs_of, strangers_in
from autorecompute.studies.importing import DRAFT_PREFIX
from autorecompute.studies.storage import TrialStore, read_trials
from autorecompute.studies.use import using
from autorecompute.units import GIB

PARTS = [
    ".gitignore",
    "best",
    "workers",
    "trials",
    "knobs",
    "study.json",
    "study.db",
    "result.json",
    ".lock",
    "sub/deep",
]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def docs(tmp_path):
    """A folder of the user's, with a file that is called like one of ours."""
    folder = tmp_path / "docs"
    (folder / "0000").mkdir(parents=True)
    for name in ("guide.md", "01.log", "0000/output.log"):
        (folder / name).write_text("precious")
    return folder


@pytest.fixture
def keep(make_detection, make_trial, make_result, make_space):
    """Keeps a finished study, or one that has just begun; with its database where it is to be exported."""

    def keep(name, *, is_finished=True, is_whole=False):
        folder = StudyFolder(name)
        folder.prepare()
        folder.begin(Problem.of(make_detection(), GIB), ["python", "train.py"], Sizes.of(make_detection()))
        (folder.workers / "01.log").write_text("output")
        if is_finished:
            if is_whole:
                TrialStore(folder.database, name, make_space(), GIB).add(make_trial())
            folder.keep_trial(make_trial(), ["python", "train.py"], {}, "step 1\n")
            folder.keep_confirmed([make_result().best])
            folder.finish(make_result())
        return folder

    return keep


def everything_below(folder):
    """All files there, with what is in them."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replace_by_link(path, target):
    """Puts a link in place of what is there, if anything is."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    path.symlink_to(target)


@pytest.mark.parametrize("part", ["workers", "trials", "workers/analysis", "trials/0001", "workers/02.log"])
def test_pruning_deletes_nothing_behind_a_link(keep, docs, part):
    """Wherever in a study's folder a link lies, what it leads to stays as it is."""
    replace_by_link(keep("bert").path / part, docs / "01.log" if part.endswith(".log") else docs)
    before = everything_below(docs)
    assert main(["studies", "prune"]) == 0
    assert everything_below(docs) == before


@pytest.mark.parametrize("name", ["bert", f"{DRAFT_PREFIX}4194999-x"])
def test_pruning_does_not_enter_a_study_or_a_draft_behind_a_link(keep, tmp_path, name):
    """A folder elsewhere is whatever its owner wants it to be."""
    kept = keep("bert")
    moved = kept.path.rename(tmp_path / "elsewhere")
    Path("studies", name).symlink_to(moved)
    before = everything_below(moved)
    assert main(["studies", "prune"]) == 0
    assert everything_below(moved) == before
    assert Path("studies", name).is_symlink()


def test_pruning_deletes_files_of_our_naming_only(keep):
    """What somebody keeps beside the output of a finished study stays."""
    folder = keep("bert")
    for name in ("workers/notes.txt", "workers/analysis/trace.log", "trials/0000/output.log.old"):
        (folder.path / name).parent.mkdir(exist_ok=True)
        (folder.path / name).write_text("precious")
    assert main(["studies", "prune"]) == 0
    assert logs_of(folder) == []
    assert strangers_in(folder) == ["trials/0000/output.log.old", "workers/analysis/trace.log", "workers/notes.txt"]


def test_a_study_without_trials_is_not_pruned_with_a_script_in_it(keep):
    """A study that was begun in a folder of the user's does not take that along."""
    (keep("bert", is_finished=False).path / "train.py").write_text("precious")
    assert main(["studies", "prune"]) == 0
    assert Path("studies/bert/train.py").read_text() == "precious"


@pytest.mark.parametrize("stranger", ["train.py", "trials/0000/notes.txt", "best/model.pt"])
@pytest.mark.parametrize("verb", ["delete", "import"])
def test_a_study_is_not_removed_with_files_of_others(keep, capsys, verb, stranger):
    """Neither is it replaced: the file is named, and all stays as it was."""
    folder = keep("bert", is_whole=True)
    assert main(["studies", "export", "bert", "-o", "bert.jsonl"]) == 0
    (folder.path / stranger).write_text("precious")
    before = everything_below(folder.path)
    command = {"delete": ["delete", "bert", "--force"], "import": ["import", "bert.jsonl", "--force"]}[verb]
    assert main(["studies", *command]) == UsageError.exit_code
    assert stranger in capsys.readouterr().err
    assert everything_below(folder.path) == before


def test_a_folder_that_is_no_study_is_not_replaced_by_one(keep, capsys):
    """A folder or a file of the user's that lies among the studies is not taken for one."""
    keep("bert", is_whole=True)
    assert main(["studies", "export", "bert", "-o", "bert.jsonl"]) == 0
    Path("studies/common").mkdir()
    Path("studies/common/text.py").write_text("precious")
    Path("studies/README.md").write_text("precious")
    for name in ("common", "README.md"):
        assert main(["studies", "import", "bert.jsonl", "--study", name, "--force"]) == UsageError.exit_code
        assert "did not make" in capsys.readouterr().err
    assert everything_below(Path("studies/common")) == {Path("studies/common/text.py"): b"precious"}
    assert Path("studies/README.md").read_text() == "precious"


@pytest.mark.parametrize("verb", ["delete", "import"])
def test_of_a_study_behind_a_link_the_link_alone_goes(keep, tmp_path, verb):
    """What it leads to stays, with all that is in it."""
    moved = keep("bert", is_whole=True).path.rename(tmp_path / "elsewhere")
    Path("studies/bert").symlink_to(moved)
    assert main(["studies", "export", "bert", "-o", "bert.jsonl"]) == 0
    before = everything_below(moved)
    command = {"delete": ["delete", "bert", "--force"], "import": ["import", "bert.jsonl", "--force"]}[verb]
    assert main(["studies", *command]) == 0
    assert everything_below(moved) == before
    assert not Path("studies/bert").is_symlink()


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_written_to_a_study_with_a_link_in_it(keep, docs, part):
    """A cloned study may have a link to any place in it: no folder is made there and no file replaced."""
    folder = keep("bert", is_finished=False)
    replace_by_link(folder.path / part, docs if part in {"best", "workers", "trials"} else docs / "guide.md")
    before = everything_below(docs)
    with pytest.raises(SetupError, match=r"is a link: .*--study NAME"):
        folder.prepare()
    assert everything_below(docs) == before


@pytest.mark.parametrize("part", ["best", "study.db", ".gitignore"])
def test_nothing_is_written_where_a_pipe_lies(keep, part):
    """It would be waited for."""
    path = keep("bert", is_finished=False).path / part
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    with pytest.raises(SetupError, match=r"is no file: .*--study NAME"):
        StudyFolder("bert").prepare()


@pytest.mark.parametrize(
    "verb",
    [["tune", "train.py", "--study", "bert"], ["check", "bert", "--", "train.py"], ["report", "bert"]],
    ids=lambda verb: verb[0],
)
def test_a_verb_that_writes_refuses_a_study_with_a_link_in_it(keep, docs, capsys, verb):
    """It ends in one sentence, before the script is started."""
    Path("train.py").write_text("open('ran', 'w')")
    replace_by_link(keep("bert", is_whole=True).path / "report.html", docs / "guide.md")
    before = everything_below(docs)
    assert main(verb) == SetupError.exit_code
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "report.html is a link" in sentence
    assert everything_below(docs) == before
    assert not Path("ran").exists()


@pytest.mark.parametrize("is_study", [True, False])
def test_a_link_in_place_of_a_whole_study(keep, docs, tmp_path, is_study):
    """One that the user made to a study of his is as good as it; in any other folder no study is begun."""
    moved = keep("bert").path.rename(tmp_path / "elsewhere")
    Path("studies/bert").symlink_to(moved if is_study else docs)
    if is_study:
        StudyFolder("bert").prepare()
        return
    before = everything_below(docs)
    with pytest.raises(SetupError, match="is a link to what is no study"):
        StudyFolder("bert").prepare()
    assert everything_below(docs) == before


def test_the_folder_of_all_studies_may_be_a_link(keep, tmp_path):
    """Studies may be kept on another disk."""
    (tmp_path / "big-disk").mkdir()
    Path("studies").symlink_to(tmp_path / "big-disk")
    folder = keep("bert")
    assert (tmp_path / "big-disk" / "bert" / "study.json").is_file()
    assert main(["studies", "prune"]) == 0
    assert logs_of(folder) == []


def test_a_gitignore_of_the_users_stays(tmp_path):
    """What lies in the folder before the study is begun there is not replaced."""
    Path("studies/bert").mkdir(parents=True)
    Path("studies/bert/.gitignore").write_text("*.pt\n")
    StudyFolder("bert").prepare()
    assert (tmp_path / "studies/bert/.gitignore").read_text() == "*.pt\n"


def test_trials_are_not_read_through_a_link(keep, make_space, tmp_path):
    """Optuna makes its tables in whatever database it opens."""
    folder = keep("bert", is_finished=False)
    (tmp_path / "cookies.sqlite").touch()
    folder.database.symlink_to(tmp_path / "cookies.sqlite")
    for use in (
        lambda: read_trials(folder.database, "bert"),
        lambda: TrialStore(folder.database, "bert", make_space(), GIB),
    ):
        with pytest.raises(SetupError, match="is a link"):
            use()
    assert (tmp_path / "cookies.sqlite").read_bytes() == b""


def test_a_study_in_use_holds_files_of_ours_only(keep, make_space):
    """The lock of a tuning and the files beside its database are no strangers."""
    folder = keep("bert")
    with using(folder):
        TrialStore(folder.database, "bert", make_space(), GIB)
        folder.database.with_name("study.db-journal").touch()
        (folder.path / ".autorecompute-0123456789ab").touch()
        assert strangers_in(folder) == []
