import contextlib
import errno
import os
import shutil
from pathlib import Path

import pytest

from autorecompute.cli import main
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import StudyFolder, importing
from autorecompute.studies.importing import logs_of, strangers_in
from autorecompute.studies.records import write_records
from stand_ins.archives import take, written
from stand_ins.studies import keep_study

VERBS = {"delete": ["delete", "bert", "--force"], "import": ["import", "bert.jsonl", "--force"]}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def docs(tmp_path):
    """A folder of the user's, with files that are called like some of ours."""
    folder = tmp_path / "docs"
    (folder / "0000").mkdir(parents=True)
    for name in ("guide.md", "01.log", "0000/output.log"):
        (folder / name).write_text("precious")
    return folder


@pytest.fixture
def bert(_here, make_detection, make_trial, make_result):
    folder = keep_study(Path("studies"), make_detection(), trials=[make_trial()], result=make_result())
    (folder.workers / "01.log").write_text("output")
    return folder


def studies(*arguments):
    return main(["studies", *arguments])


@contextlib.contextmanager
def unchanged(folder):
    before = everything_below(folder)
    yield
    assert everything_below(folder) == before


def everything_below(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def replace_by_link(path, target):
    remove(path)
    path.symlink_to(target)


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)


@pytest.mark.parametrize("part", ["workers", "trials", "workers/analysis", "trials/0001", "workers/02.log"])
def test_pruning_deletes_nothing_behind_a_link(bert, docs, part):
    replace_by_link(bert.path / part, docs / "01.log" if part.endswith(".log") else docs)
    with unchanged(docs):
        assert studies("prune") == 0


@pytest.mark.parametrize("name", ["bert", f"{importing.DRAFT_PREFIX}4194999-x"])
def test_pruning_does_not_enter_a_study_or_a_draft_behind_a_link(bert, tmp_path, name):
    moved = bert.path.rename(tmp_path / "elsewhere")
    Path("studies", name).symlink_to(moved)
    with unchanged(moved):
        assert studies("prune") == 0
    assert Path("studies", name).is_symlink()


def test_pruning_deletes_files_of_our_naming_only(bert, make_detection):
    script = keep_study(Path("studies"), make_detection(), name="new").path / "train.py"
    script.write_text("precious")
    for name in ("workers/notes.txt", "workers/analysis/trace.log", "trials/0000/output.log.old"):
        (bert.path / name).parent.mkdir(exist_ok=True)
        (bert.path / name).write_text("precious")
    assert studies("prune") == 0
    assert logs_of(bert) == []
    assert script.read_text() == "precious"
    bert.database.with_name("study.db-journal").touch()
    (bert.path / ".autorecompute-0123456789ab").touch()
    assert strangers_in(bert) == ["trials/0000/output.log.old", "workers/analysis/trace.log", "workers/notes.txt"]


@pytest.mark.parametrize("stranger", ["train.py", "trials/0000/notes.txt", "best/model.pt"])
@pytest.mark.parametrize("verb", VERBS)
def test_a_study_is_not_removed_with_files_of_others(bert, capsys, verb, stranger):
    assert studies("export", "bert", "-o", "bert.jsonl") == 0
    (bert.path / stranger).write_text("precious")
    with unchanged(bert.path):
        assert studies(*VERBS[verb]) == UsageError.exit_code
    assert stranger in capsys.readouterr().err


@pytest.mark.usefixtures("bert")
def test_a_folder_that_is_no_study_is_not_replaced_by_one(capsys):
    assert studies("export", "bert", "-o", "bert.jsonl") == 0
    Path("studies/common").mkdir()
    Path("studies/common/text.py").write_text("precious")
    Path("studies/README.md").write_text("precious")
    with unchanged(Path("studies")):
        for name in ("common", "README.md"):
            assert studies("import", "bert.jsonl", "--study", name, "--force") == UsageError.exit_code
            assert "did not make" in capsys.readouterr().err


@pytest.mark.parametrize("verb", VERBS)
def test_of_a_study_behind_a_link_the_link_alone_goes(bert, tmp_path, verb):
    moved = bert.path.rename(tmp_path / "elsewhere")
    Path("studies/bert").symlink_to(moved)
    assert studies("export", "bert", "-o", "bert.jsonl") == 0
    with unchanged(moved):
        assert studies(*VERBS[verb]) == 0
    assert not Path("studies/bert").is_symlink()


FOLDERS = ("best", "workers", "trials")
FILES = (".gitignore", "knobs", "study.json", "study.db", "result.json", ".lock", "sub/deep")


@pytest.mark.parametrize(
    ("part", "kind"),
    [*((part, "a link") for part in (*FOLDERS, *FILES)), *((part, "no file") for part in ("best", ".gitignore"))],
)
def test_nothing_is_written_to_a_study_that_leads_elsewhere(bert, docs, part, kind):
    """It may have come with a repository that was cloned; nor is a pipe waited for."""
    remove(bert.path / part)
    if kind == "a link":
        (bert.path / part).symlink_to(docs if part in FOLDERS else docs / "guide.md")
    else:
        os.mkfifo(bert.path / part)
    with unchanged(docs), pytest.raises(SetupError, match=rf"is {kind}: .*--study NAME"):
        bert.prepare()


@pytest.mark.parametrize(
    "verb",
    [["tune", "train.py", "--study", "bert"], ["check", "bert", "--", "train.py"], ["report", "bert"]],
    ids=lambda verb: verb[0],
)
def test_a_verb_that_writes_refuses_a_study_with_a_link_in_it(bert, docs, capsys, verb):
    Path("train.py").write_text("open('ran', 'w')")
    replace_by_link(bert.path / "report.html", docs / "guide.md")
    with unchanged(docs):
        assert main(verb) == SetupError.exit_code
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "report.html is a link" in sentence
    assert not Path("ran").exists()


@pytest.mark.parametrize("path", ["studies/bert", "studies"])
def test_a_study_behind_a_link_of_the_users_is_as_good_as_any(bert, path):
    Path(path).symlink_to(Path(path).rename("on-another-disk").absolute())
    bert.prepare()
    assert bert.result() is not None
    assert studies("prune") == 0
    assert (logs_of(bert) == []) == (path == "studies")


def test_no_study_is_begun_behind_a_link(docs):
    Path("studies").mkdir()
    Path("studies/bert").symlink_to(docs)
    with unchanged(docs), pytest.raises(SetupError, match="is a link to what is no study"):
        StudyFolder("bert").prepare()


def test_a_gitignore_of_the_users_stays():
    Path("studies/bert").mkdir(parents=True)
    Path("studies/bert/.gitignore").write_text("*.pt\n")
    StudyFolder("bert").prepare()
    assert Path("studies/bert/.gitignore").read_text() == "*.pt\n"


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


def test_of_two_imports_at_once_none_replaces_the_other_unasked(archive, elsewhere, monkeypatch):
    file = written(elsewhere, archive)

    def write_slowly(records, folder):
        monkeypatch.setattr(importing, "write_records", write_records)
        (take(file).path / "first.txt").touch()
        write_records(records, folder)

    monkeypatch.setattr(importing, "write_records", write_slowly)
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
