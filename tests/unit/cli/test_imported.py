import dataclasses
import json
from pathlib import Path

import pytest

from autorecompute.checking import Checker
from autorecompute.plans import Config
from autorecompute.studies import StudyFolder
from autorecompute.studies.checked import CHECKED, CheckLine, CheckReport, CheckVerdict, keep_check

SENTENCE = (
    "Study 'theirs' was imported and never confirmed on this machine. Run 'autorecompute check theirs -- train.py'"
)


@pytest.fixture(autouse=True)
def imported(call, begin, make_result):
    begin(result=make_result(trials=0))
    assert call("studies", "export", "bert", "-o", "bert.jsonl")[0] == 0
    assert call("studies", "import", "bert.jsonl", "--study", "theirs")[0] == 0
    return StudyFolder("theirs")


@pytest.mark.parametrize("verb", ["emit theirs", "emit theirs --format json", "run theirs -- no-such-command"])
def test_nothing_is_trained_with_what_nobody_confirmed_here(call, verb):
    code, out, err = call(*verb.split())
    assert (code, out) == (2, "")
    assert SENTENCE in err


def test_it_is_shown_without_what_to_train_with(call, imported):
    code, out, _ = call("show", "theirs")
    assert code == 0
    assert SENTENCE in out
    assert "export " not in out
    assert "autorecompute run" not in out
    assert json.loads(call("show", "theirs", "--json")[1])["result"]["best"]["env"] is None
    assert call("report", "theirs")[0] == 0
    page = (imported.path / "report.html").read_text()
    assert "was imported and never confirmed on this machine" in page
    assert "FAKE_PLANS=" not in page


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (CheckVerdict.OK, "is confirmed on this machine"),
        (CheckVerdict.NOT_COMPARED, "'theirs' is not confirmed here (gradients not compared: oom: no room)"),
        (CheckVerdict.FAILS, "'theirs' is not valid here any more"),
    ],
)
def test_only_a_check_that_found_all_out_confirms(call, monkeypatch, imported, verdict, words):
    Path("train.py").touch()
    line = CheckLine(what="gradients", stored="equal", here="not compared", verdict=verdict, note="oom: no room")
    valid = verdict is CheckVerdict.OK
    told = {"study": "theirs", "config": "two", "command": ("python", "train.py"), "lines": (line,), "limit_bytes": 1}
    report = CheckReport(valid=valid, **told)
    monkeypatch.setattr(Checker, "run", lambda *_, **__: report)
    code, _, err = call("check", "theirs", "--", "train.py")
    assert code == (0 if valid else 4)
    assert words in err
    assert (imported.path / CHECKED).exists() == valid
    code, out, _ = call("emit", "theirs")
    assert (code == 0) == (str(imported.best.absolute() / "plans.json") in out) == valid
    assert ("autorecompute run theirs" in call("show", "theirs")[1]) == valid


def test_neither_a_check_of_another_config_nor_an_archive_confirms_anything(call, imported):
    best = imported.result().best
    for other in (dataclasses.replace(best, config=Config()), dataclasses.replace(best, knobs=("fused_kernels",))):
        keep_check(imported, other)
        assert call("emit", "theirs")[0] == 2
    keep_check(imported, imported.result().best)
    assert call("studies", "export", "theirs", "-o", "again.jsonl")[0] == 0
    assert call("studies", "import", "again.jsonl", "--study", "theirs", "--force")[0] == 0
    assert not (imported.path / CHECKED).exists()
    assert call("emit", "theirs")[0] == 2


def test_an_imported_study_is_not_tuned_on(call):
    """Figures of two machines do not mix."""
    Path("train.py").write_text("open('started', 'w')")
    code, out, err = call("tune", "train.py", "--study", "theirs")
    assert (code, out) == (2, "")
    assert "Add --study NAME" in err
    assert not Path("started").exists()
