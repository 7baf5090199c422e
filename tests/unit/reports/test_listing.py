import dataclasses

import pytest

from autorecompute.figures import Verdict
from autorecompute.reports.tables import StudyLine, print_studies
from autorecompute.result import SearchEnd
from autorecompute.studies import list_studies


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    def listed(columns=200):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_studies([StudyLine.of(folder) for folder in list_studies(tmp_path / "studies")])
        return capsys.readouterr().out

    return listed


def test_studies_are_told_with_their_answers_and_open_ones_as_such(keep, listed, make_result):
    nothing = dataclasses.replace(make_result(verdict=Verdict.NO_FIT, trials=0), best=None)
    answers = {
        "a": None,
        "b": make_result(trials=0),
        "c": make_result(trials=0).ending(SearchEnd.INTERRUPTED),
        "d": nothing.ending(SearchEnd.TIME),
        "e": nothing,
    }
    for name, result in answers.items():
        keep((), result, name=name)
    begun, done, interrupted, unanswered, unfit = listed().splitlines()[1:]
    assert "no answer yet" in begun
    assert done.startswith("b ")
    assert "recompute_pays" in done
    assert "batch 32" in done
    assert "at batch 32, so far" in interrupted
    assert "no answer yet" in unanswered
    assert "no_fit" not in unanswered
    assert "no_fit" in unfit


def test_a_name_can_be_copied_from_a_pipe(keep, listed):
    name = "transformer_pretraining-train_with_deepspeed-b128-1f3a5c"
    script = "experiments/pretraining/train_with_deepspeed.py"
    keep(name=name, command=["python", script, *["--some-long-flag=value"] * 6])
    assert any(line.startswith(f"{name} ") for line in listed(columns=80).splitlines())


def test_names_commands_and_answers_are_printed_as_they_are_and_steer_no_terminal(keep, listed, make_result):
    result = make_result(of_best={"description": "\x1b]0;all\x07"}, trials=0)
    keep((), result, name="a[red]c", command=["python", "\x1b[31mtrain.py", "--layers", "[/all]"])
    out = listed()
    assert [word for word in ("a[red]c", "\\x1b[31mtrain.py", "[/all]", "\\x1b]0;all") if word not in out] == []
    assert "\x1b" not in out
