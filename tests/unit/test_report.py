"""``autorecompute report``: where the page goes, and what it never overwrites."""

import pytest

from autorecompute.cli import main
from autorecompute.studies import Problem, StudyFolder


@pytest.fixture
def folder(tmp_path, monkeypatch, make_detection, make_result):
    """A finished study without trials, in the working directory."""
    monkeypatch.chdir(tmp_path)
    folder = StudyFolder("bert")
    folder.prepare()
    folder.begin(Problem.of(make_detection(), 2**30), ["python", "train.py"])
    folder.finish(make_result(trials=0))
    return folder


def test_the_page_goes_into_the_studys_folder_and_is_made_anew(folder, capsys):
    """Its path is all that is printed; a second report replaces it; show then names it."""
    assert main(["report", "bert"]) == 0
    page = folder.path / "report.html"
    assert capsys.readouterr().out == f"{page}\n"
    page.write_text("old")
    assert main(["report", "bert"]) == 0
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    capsys.readouterr()
    assert main(["show", "bert"]) == 0
    assert f"page: {page}" in capsys.readouterr().out


def test_without_a_page_show_says_how_to_make_it(folder, capsys):
    """One line, to paste."""
    assert main(["show", folder.name]) == 0
    assert "page: autorecompute report bert\n" in capsys.readouterr().out


def test_a_file_of_the_users_is_not_replaced(folder, tmp_path, capsys):
    """Only --force replaces it, and until then it is as it was."""
    mine = tmp_path / "mine.html"
    mine.write_text("mine")
    assert main(["report", folder.name, "-o", "mine.html"]) == 2
    assert "Add --force to replace it." in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert main(["report", folder.name, "-o", "mine.html", "--force"]) == 0
    assert "the batch fits only with" in mine.read_text(encoding="utf-8").lower()


@pytest.mark.parametrize("arguments", [["gpt"], ["bert", "-o", "nowhere/page.html"], ["bert", "-o", "studies"]])
def test_mistakes_are_told_in_a_sentence(folder, arguments, capsys):
    """A study or a folder that is not there is a usage error, without a traceback."""
    assert folder.exists()
    assert main(["report", *arguments]) == 2
    assert capsys.readouterr().err.startswith("autorecompute: ")
