"""Studies that come from elsewhere: what was measured there is a start for a tuning, and no answer here."""

import dataclasses
import json
from pathlib import Path

import pytest

from autorecompute.checking.checker import Checker
from autorecompute.cli import main
from autorecompute.plans import Config
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.checked import CheckLine, CheckReport, CheckVerdict
from autorecompute.studies.confirmed_here import CHECKED, keep_check

SENTENCE = (
    "Study 'theirs' was imported and never confirmed on this machine. Run 'autorecompute check theirs -- train.py'"
)


@pytest.fixture
def call(tmp_path, monkeypatch, capsys):
    """Calls a verb beside the studies; gives its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments):
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def imported(call, tmp_path, make_detection, make_result):
    """A study that was exported, and imported under another name."""
    folder = StudyFolder("bert", tmp_path / "studies")
    folder.prepare()
    detection = make_detection()
    folder.begin(Problem.of(detection, 2**30), ["python", "train.py"], Sizes.of(detection))
    result = make_result(trials=0)
    folder.keep_confirmed([result.best])
    folder.finish(result)
    assert call("studies", "export", "bert", "-o", "bert.jsonl")[0] == 0
    assert call("studies", "import", "bert.jsonl", "--study", "theirs")[0] == 0
    return StudyFolder("theirs", tmp_path / "studies")


@pytest.mark.parametrize(
    "verb", [["emit", "theirs"], ["emit", "theirs", "--format", "json"], ["run", "theirs", "--", "true"]]
)
@pytest.mark.usefixtures("imported")
def test_nothing_is_trained_with_what_nobody_confirmed_here(call, verb):
    """An imported study gives nothing out, and one sentence says what to do."""
    code, out, err = call(*verb)
    assert (code, out) == (2, "")
    assert SENTENCE in err


@pytest.mark.usefixtures("imported")
def test_it_is_shown_without_what_to_train_with(call):
    """The answer is told, as are the steps to take; no variable and no command is."""
    code, out, _ = call("show", "theirs")
    assert code == 0
    assert SENTENCE in out
    assert "export " not in out
    assert "autorecompute run" not in out
    assert json.loads(call("show", "theirs", "--json")[1])["result"]["best"]["env"] is None
    studies = json.loads(call("studies", "compare", "bert", "theirs", "--json")[1])["studies"]
    assert [study["result"]["best"]["env"] is None for study in studies] == [False, True]


def test_its_page_has_nothing_to_paste(call, imported):
    """The report says what to do instead."""
    assert call("report", "theirs")[0] == 0
    page = (imported.path / "report.html").read_text()
    assert "was imported and never confirmed on this machine" in page
    assert "FAKE_PLANS=" not in page


def test_a_check_here_confirms_it(call, imported):
    """Once a check has found the config valid here, the study is emitted as any other."""
    keep_check(imported, imported.result().best)
    code, out, _ = call("emit", "theirs")
    assert code == 0
    assert str(imported.best / "plans.json") in out
    assert "autorecompute run theirs" in call("show", "theirs")[1]


@pytest.fixture
def check_finding(call, monkeypatch):
    """Checks the study, and finds this about the gradients."""

    def check_finding(verdict):
        Path("train.py").touch()
        line = CheckLine(what="gradients", stored="equal", here="not compared", verdict=verdict, note="oom: no room")
        report = CheckReport(study="theirs", config="two", command=("python", "train.py"), lines=(line,), limit_bytes=1)
        monkeypatch.setattr(Checker, "run", lambda *_, **__: report)
        return call("check", "theirs", "--", "train.py")

    return check_finding


@pytest.mark.parametrize(
    ("verdict", "confirms", "words"),
    [
        (CheckVerdict.OK, True, "is confirmed on this machine"),
        (CheckVerdict.NOT_COMPARED, False, "'theirs' is not confirmed here (gradients not compared: oom: no room)"),
        (CheckVerdict.FAILS, False, "'theirs' is not valid here any more"),
    ],
)
def test_only_a_check_that_found_all_out_confirms(check_finding, imported, verdict, confirms, words):
    """Where gradients could not be compared, the study is as unconfirmed as one whose config fails."""
    code, _, err = check_finding(verdict)
    assert code == (0 if confirms else 4)
    assert words in err
    assert (imported.path / CHECKED).exists() == confirms


def test_a_check_of_another_config_confirms_nothing(call, imported):
    """What was checked is one config under certain settings."""
    best = imported.result().best
    for other in (dataclasses.replace(best, config=Config()), dataclasses.replace(best, knobs=("fused_kernels",))):
        keep_check(imported, other)
        assert call("emit", "theirs")[0] == 2


def test_no_archive_brings_a_confirmation_along(call, imported):
    """A check is forgotten with the study that it was of, and no line of an archive can say that there was one."""
    keep_check(imported, imported.result().best)
    assert call("studies", "export", "theirs", "-o", "again.jsonl")[0] == 0
    assert call("studies", "import", "again.jsonl", "--study", "theirs", "--force")[0] == 0
    assert not (imported.path / CHECKED).exists()
    assert call("emit", "theirs")[0] == 2


@pytest.mark.usefixtures("imported")
def test_an_imported_study_is_not_tuned_on(call, tmp_path):
    """Figures of two machines do not mix: the sentence names the way out, and the script is not started."""
    (tmp_path / "train.py").write_text("open('started', 'w')")
    code, out, err = call("tune", "train.py", "--study", "theirs")
    assert (code, out) == (2, "")
    assert "Add --study NAME" in err
    assert not (tmp_path / "started").exists()
