"""The list of studies."""

import dataclasses
import json

import pytest

from autorecompute import codec
from autorecompute.reports.listing import StudyLine, print_studies
from autorecompute.result import SearchEnd
from autorecompute.studies import Problem, StudyFolder, list_studies
from autorecompute.verdict import Verdict


@pytest.fixture
def begin(tmp_path, make_detection):
    """Begins a study."""

    def begin(name, command=("python", "train.py")):
        folder = StudyFolder(name, tmp_path)
        folder.prepare()
        folder.begin(Problem.of(make_detection(), 2**30), list(command))
        folder.database.touch()  # the list only looks whether it is there
        return folder

    return begin


@pytest.fixture
def listed(tmp_path, capsys, monkeypatch):
    """What the list prints."""

    def listed(columns=200):
        monkeypatch.setenv("COLUMNS", str(columns))
        print_studies([StudyLine.of(folder) for folder in list_studies(tmp_path)])
        return capsys.readouterr().out

    return listed


def test_studies_are_told_with_their_answers(begin, listed, make_result):
    """An unfinished study has no verdict, a finished one its verdict and its winner."""
    begin("gpt")
    begin("bert").finish(make_result())
    _, bert, gpt = listed().splitlines()
    assert bert.startswith("bert")
    assert "recompute_pays" in bert
    assert "batch 32" in bert
    assert "no answer yet" in gpt


def test_an_answer_that_is_open_is_told_as_such(begin, listed, make_result):
    """Where the time was over first there is none, or the best so far."""
    nothing = dataclasses.replace(make_result(), best=None, verdict=Verdict.NO_FIT)
    begin("bert").finish(make_result().ending(SearchEnd.INTERRUPTED))
    begin("gpt").finish(nothing.ending(SearchEnd.TIME))
    begin("vit").finish(nothing)
    _, bert, gpt, vit = listed().splitlines()
    assert "at batch 32, so far" in bert
    assert "no answer yet" in gpt
    assert "no_fit" not in gpt
    assert "no_fit" in vit


def test_no_studies_say_how_to_begin(listed):
    """An empty list names the command that begins a study."""
    assert "autorecompute tune" in listed()


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 1}', '{"format": 99}', '{"format": 1, "digest": 1, "command": 7}']
)
def test_a_study_that_cannot_be_read_hides_no_other(begin, listed, content):
    """The others are listed, and the broken one says why instead of an answer."""
    begin("bert")
    (begin("broken").path / "study.json").write_text(content)
    begin("gpt")
    text = listed()
    assert all(name in text for name in ("bert", "broken", "gpt"))
    assert "Traceback" not in text


def test_a_broken_answer_hides_no_other(begin, listed, make_result):
    """A study whose answer is cut off is listed with what is wrong."""
    begin("bert").finish(make_result())
    (begin("broken").path / "result.json").write_text('{"study":')
    text = listed()
    assert "bert" in text
    table, told = text.split("\n\n")
    assert "cannot be read: see below" in table
    assert max(map(len, table.splitlines())) < 100
    assert told.startswith("broken: ")
    assert "result.json cannot be read" in " ".join(told.split())


def test_the_list_is_json(begin, make_result):
    """Every study of the list can be written as JSON, with nulls for what is unknown."""
    folder = begin("bert")
    plain = json.loads(codec.dumps(StudyLine.of(folder)))
    assert (plain["study"], plain["verdict"], plain["command"]) == ("bert", None, ["python", "train.py"])
    folder.finish(make_result())
    assert StudyLine.of(folder).verdict == "recompute_pays"


@pytest.mark.parametrize("name", ["[red]", "a[b]c"])
def test_names_and_commands_are_printed_as_they_are(begin, listed, name):
    """What looks like rich's markup in a study's name or its command is text."""
    begin(name, ["python", "train.py", "--layers", "[/all]"])
    text = listed()
    assert name in text
    assert "[/all]" in text


def test_a_name_can_be_copied_from_a_pipe(begin, listed):
    """Where the list is no terminal's, a study's name is whole on one line, however long its command is."""
    name = "transformer_pretraining-train_with_deepspeed-b128-1f3a5c"
    begin(name, ["python", "experiments/pretraining/train_with_deepspeed.py", *["--some-long-flag=value"] * 6])
    assert any(line.startswith(f"{name} ") for line in listed(columns=80).splitlines())


def test_a_study_cannot_steer_the_terminal(begin, listed, make_result):
    """Control characters of what is stored are shown, wherever they stand."""
    begin("gpt", command=("python", "\x1b[31mtrain.py")).finish(
        dataclasses.replace(make_result(), best=dataclasses.replace(make_result().best, description="\x1b]0;all\x07"))
    )
    out = listed()
    assert "\x1b" not in out
    assert "\\x1b[31mtrain.py" in out
    assert "\\x1b]0;all" in out
