"""``autorecompute studies`` and ``show`` as commands: what there is, what goes and what stays."""

import gzip
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from autorecompute.cli import main
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.importing import DRAFT_PREFIX
from autorecompute.studies.sharing.mirror import share
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB
from stand_ins import program
from stand_ins.printed import has_no_data

LIMIT = 900 * MIB


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def keep(make_detection, make_space, make_trial, make_result):
    """Keeps a study with so many trials, finished or not."""

    def keep(name, *, trials=1, is_finished=True, **changes):
        folder, problem = StudyFolder(name), Problem.of(make_detection(**changes), LIMIT)
        folder.prepare()
        folder.begin(problem, ["python", "train.py"], Sizes.of(make_detection(**changes)))
        # A database that was opened stays open in this process, and a command in another one would see that.
        store = TrialStore(folder.database, name, make_space(), LIMIT) if trials else None
        for number in range(trials):
            store.add(make_trial(number=number))
            folder.keep_trial(make_trial(number=number), ["python", "train.py"], {}, "step 1\n")
        (folder.workers / "01.log").write_text("x" * 1000)
        if is_finished:
            folder.keep_confirmed([make_result().best])
            folder.finish(make_result())
        return folder

    return keep


@pytest.fixture
def run(capsys):
    """Runs a command; gives its exit code, its data and its talk."""

    def run(*arguments):
        try:
            code = main(list(arguments))
        except SystemExit as usage:
            code = usage.code
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_the_list_is_that_of_show(keep, run):
    """``studies list`` says what ``show`` says."""
    keep("bert")
    assert run("studies", "list") == run("show")
    assert run("studies", "list", "--json") == run("show", "--json")
    assert run("studies", "show", "bert") == run("show", "bert")


def test_a_study_shows_each_part_of_its_identity(keep, run):
    """Graph, plans, batch, limit, device, versions, dimensions and command are told, and are in the JSON."""
    keep("bert")
    out = run("show", "bert")[1]
    identity = json.loads(run("show", "bert", "--json")[1])["identity"]
    assert set(identity) >= {
        "graph",
        "plans",
        "batch",
        "limit",
        "device",
        "device memory",
        "torch",
        "fake",
        "d1",
    }
    assert all(value in out for value in identity.values())


@pytest.mark.parametrize(
    ("change", "part", "has_same_plans"),
    [({"batch": 64}, "batch", True), ({"graph": "ffff"}, "graph", True), ({"plans": ()}, "plans", False)],
)
def test_why_names_the_part_that_differs(keep, run, change, part, has_same_plans):
    """The nearest study is named with what differs, also where it tells nothing for its plans."""
    keep("bert")
    keep("other", **change)
    out = run("show", "other", "--why")[1]
    nearest = json.loads(run("show", "other", "--why", "--json")[1])["nearest"]
    assert (nearest["study"], nearest["has_same_plans"]) == ("bert", has_same_plans)
    assert [difference["part"] for difference in nearest["differences"]] == [part]
    assert "nearest: study bert" in out
    assert nearest["differences"][0]["there"] in out
    assert ("starts from" in out) == has_same_plans


def test_why_says_where_the_problem_is_the_same(keep, run):
    """Two studies of one problem differ in nothing."""
    keep("bert")
    keep("again")
    assert "same problem" in run("show", "again", "--why")[1]


def test_two_studies_side_by_side(keep, run):
    """What differs in their problems is told apart from what they found."""
    keep("bert", trials=3)
    keep("large", batch=64, is_finished=False)
    out = run("studies", "compare", "bert", "large")[1]
    plain = json.loads(run("studies", "compare", "bert", "large", "--json")[1])
    assert plain["differences"] == [{"part": "batch", "here": "32", "there": "64"}]
    assert [study["trials"] for study in plain["studies"]] == [3, 1]
    assert (plain["studies"][0]["result"]["verdict"], plain["studies"][1]["result"]) == ("recompute_pays", None)
    assert "51.2 samples/s" in out
    assert run("studies", "compare", "bert", "nope")[0] == UsageError.exit_code


def test_an_export_does_not_replace_a_file(keep, run):
    """What is there stays unless force is given, and .gz is compressed."""
    keep("bert")
    Path("bert.jsonl.gz").write_text("mine")
    code, _, err = run("studies", "export", "bert", "-o", "bert.jsonl.gz")
    assert (code, Path("bert.jsonl.gz").read_text()) == (UsageError.exit_code, "mine")
    assert "--force" in err
    assert run("studies", "export", "bert", "-o", "bert.jsonl.gz", "--force")[0] == 0
    assert Path("bert.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert run("studies", "import", "bert.jsonl.gz", "--study", "")[0] == UsageError.exit_code
    before = run("studies", "export", "bert")[1]
    assert run("studies", "import", "bert.jsonl.gz", "--force")[0] == 0
    assert run("studies", "export", "bert")[1] == before


@pytest.mark.parametrize("file", ["-", "/dev/stdin"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_an_archive_can_be_piped_in(keep, run, file, is_compressed):
    """What export writes to a pipe, import reads from one."""
    keep("bert")
    archive = run("studies", "export", "bert")[1].encode()
    command = [sys.executable, program.__file__, "studies", "import", file, "--study", "piped"]
    done = subprocess.run(
        command, input=gzip.compress(archive) if is_compressed else archive, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, b"")
    assert run("studies", "export", "piped")[1] == archive.decode().replace('"study":"bert"', '"study":"piped"')


def test_a_pipe_that_nobody_writes_is_not_waited_for(run):
    """A named pipe is refused in a sentence."""
    os.mkfifo("pipe")
    code, _, err = run("studies", "import", "pipe")
    assert code == UsageError.exit_code
    assert "'pipe' is a pipe" in err


def test_an_archive_with_a_name_that_none_can_have_needs_another(keep, run):
    """The way out is told, and leads out."""
    keep("bert")
    archive = run("studies", "export", "bert")[1]
    Path("a.jsonl").write_text(archive.replace('"study":"bert"', '"study":"../x"'))
    assert "--study NAME" in run("studies", "import", "a.jsonl")[2]
    assert run("studies", "import", "a.jsonl", "--study", "x")[0] == 0


def test_a_name_as_the_shell_completes_it(keep, run):
    """A slash behind the name of a study is none of its name."""
    keep("bert")
    for verb in (["show"], ["studies", "export"]):
        assert run(*verb, "bert/") == run(*verb, "bert")


def test_deleting_removes_all_that_was_named_or_nothing(keep, run):
    """A name that does not exist keeps the others from going."""
    for name in ("bert", "gpt", "vit"):
        keep(name)
    assert run("studies", "delete", "bert", "nope", "--force")[0] == UsageError.exit_code
    assert Path("studies/bert").is_dir()
    code, out, err = run("studies", "delete", "bert", "gpt", "--force")
    assert (code, out) == (0, "")
    assert "bert" in err
    assert [path.name for path in Path("studies").iterdir()] == ["vit"]


def test_a_study_that_cannot_be_read_can_be_deleted(keep, run):
    """What is broken may go, too."""
    (keep("broken").path / "study.json").write_text("{")
    assert run("studies", "delete", "broken", "--force")[0] == 0
    assert not Path("studies/broken").exists()


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_study_that_lost_its_trials_is_told(keep, run, is_finished):
    """Without its database it is no complete study to any verb that reads it, and the list says so."""
    keep("bert", is_finished=is_finished).database.unlink()
    for verb in (["show", "bert"], ["show", "bert", "--json"], ["studies", "export", "bert"], ["report", "bert"]):
        code, out, err = run(*verb)
        assert code == SetupError.exit_code
        assert has_no_data(verb, code, out)
        assert "study.db is missing" in err
    assert "cannot be read" in run("show")[1]
    assert "study.db is missing" in json.loads(run("show", "--json")[1])["studies"][0]["note"]


def test_a_study_that_has_just_begun_has_lost_nothing(keep, run):
    """Before the first trial there may be no database."""
    keep("bert", trials=0, is_finished=False)
    assert run("show", "bert")[0] == run("studies", "export", "bert")[0] == 0


def test_nobody_to_ask_removes_nothing(keep):
    """Without a terminal force has to be given."""
    keep("bert", trials=0)
    command = [sys.executable, "-m", "autorecompute", "studies", "delete", "bert"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode == UsageError.exit_code
    assert "--force" in done.stderr
    assert Path("studies/bert").is_dir()


@pytest.mark.parametrize(("answer", "stays"), [(b"y\n", False), (b"n\n", True), (b"\n", True)])
def test_a_terminal_is_asked(keep, answer, stays):
    """Only a yes removes."""
    keep("bert", trials=0)
    ours, theirs = pty.openpty()
    try:
        os.write(ours, answer)
        command = [sys.executable, "-m", "autorecompute", "studies", "delete", "bert"]
        assert subprocess.run(command, stdin=theirs, capture_output=True, check=False).returncode == 0
    finally:
        os.close(ours)
        os.close(theirs)
    assert Path("studies/bert").is_dir() == stays


def test_a_study_in_use_is_not_deleted(keep, run):
    """While a process has its files open, it stays, whatever is forced."""
    folder = keep("bert")
    hold = f"import time; file = open({str(folder.workers / '01.log')!r}); print('open', flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold], stdout=subprocess.PIPE, text=True) as holder:
        holder.stdout.readline()
        code, _, err = run("studies", "delete", "bert", "--force")
        pruned = run("studies", "prune")
        holder.kill()
    assert code == UsageError.exit_code
    assert str(holder.pid) in err
    assert pruned[1] == ""
    assert (folder.workers / "01.log").exists()


def test_pruning_leaves_what_reuse_needs(keep, run):
    """Output of finished studies, empty studies and abandoned drafts go; answers, trials and what goes on stay."""
    finished, open_, empty = keep("bert"), keep("gpt", is_finished=False), keep("new", trials=0, is_finished=False)
    gone = Path("studies") / f"{DRAFT_PREFIX}4194999-x"
    gone.mkdir()
    for folder in (finished, open_):
        (folder.path / "report.html").write_text("with links to logs")
    exported = run("studies", "export", "bert")[1]
    dry = run("studies", "prune", "--dry-run")
    assert "would free" in dry[2]
    assert finished.workers.joinpath("01.log").exists()
    code, out, err = run("studies", "prune")
    assert (code, out) == (0, dry[1])
    assert "freed" in err
    assert not list(finished.workers.iterdir())
    assert not finished.trial(0).joinpath("output.log").exists()
    assert finished.trial(0).joinpath("result.json").exists()
    assert open_.workers.joinpath("01.log").exists()
    assert not empty.path.exists()
    assert not gone.exists()
    assert [(folder.path / "report.html").exists() for folder in (finished, open_)] == [False, True]
    assert run("studies", "export", "bert")[1] == exported
    assert run("studies", "prune")[1] == ""


def test_a_shared_study_whose_worker_was_killed(keep, run, make_trial):
    """What it measured is in the storage: that is said, nothing is exported as if it were all, and nothing pruned."""
    folder = keep("bert", trials=0, is_finished=False)
    share(folder, "token", "journal:/shared/bert")
    folder.keep_trial(make_trial(), ["python", "train.py"], {}, "step 1\n")
    out = run("show", "bert")[1]
    assert "its trials are in journal:/shared/bert" in out
    assert "with its --storage" in out
    assert "no answer yet; shared" in run("show", "--json")[1]
    code, out, err = run("studies", "export", "bert")
    assert (code, out) == (UsageError.exit_code, "")
    assert "its trials are in journal:/shared/bert" in err
    assert run("studies", "prune")[:2] == (0, "")
    assert folder.trial(0).is_dir()


def test_a_shared_study_whose_worker_has_ended(keep, run):
    """Its folder has all of it, and says where else it is."""
    share(keep("bert"), "token", "journal:/shared/bert")
    out = run("show", "bert")[1]
    assert "shared in journal:/shared/bert" in out
    assert "its trials are in" not in out
    assert run("studies", "export", "bert")[0] == 0


def test_a_place_that_was_written_by_others_obeys_no_terminal(keep, run):
    """What its file says is shown without what a terminal would do."""
    share(keep("bert"), "token", "journal:\x1b]0;title\x07\nno answer yet")
    assert "shared in journal:\\x1b]0;title\\x07\\nno answer yet\n" in run("show", "bert")[1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["studies"], "ACTION"),
        (["studies", "rename"], "rename"),
        (["studies", "compare", "bert"], "STUDY"),
        (["studies", "compare", "a/b", "c"], "'a/b'"),
        (["studies", "export", "no-such-study"], "no-such-study"),
        (["studies", "export", "../x"], "'../x'"),
        (["studies", "export", "a\x1b[31m\nb"], "'a\\x1b[31m\\nb'"),
        (["studies", "import", "no-such-file"], "no-such-file"),
        (["studies", "delete"], "STUDY"),
        (["studies", "delete", "no-such-study"], "no-such-study"),
        (["show", "--why"], "--why"),
        (["check"], "STUDY"),
        (["check", "no-such-study"], "no-such-study"),
        (["check", "bert", "--steps", "0"], "--steps"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_usage_is_one_sentence(run, arguments, words):
    """A mistake ends with code 2, names what was wrong, prints no data and makes no folder."""
    code, out, err = run(*arguments)
    assert (code, out) == (UsageError.exit_code, "")
    assert words in err.splitlines()[-1]
    assert list(Path.cwd().iterdir()) == []
