"""Where the arguments of the script are written: after ``--``, and nowhere else."""

import pytest

from autorecompute.cli import main
from autorecompute.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("train train.py --batch-size 32", "autorecompute train train.py -- --batch-size 32."),
        ("tune train.py 8", "autorecompute tune train.py -- 8."),
        ("tune train.py --steps 3 --bs 8", "autorecompute tune train.py ... -- --bs 8."),
        ("plans train.py --bs 8", "autorecompute plans train.py -- --bs 8."),
        ("tune --steps 3 train.py --bs 8", "Arguments of the script come after --. "),
    ],
)
def test_who_forgets_the_dashes_is_told(capsys, arguments, words):
    """The verb's own usage and the whole command stand in the message."""
    assert main(arguments.split()) == UsageError.exit_code
    told = capsys.readouterr().err
    assert words in told.splitlines()[-1]
    assert told.startswith(f"usage: autorecompute {arguments.split()[0]} ")
    assert "SCRIPT [-- ARGUMENT ...]" in told


@pytest.mark.parametrize("arguments", ["show bert 8", "report bert --json", "studies list --why", "run bert python"])
def test_verbs_without_a_script_are_told_of_no_arguments_of_one(capsys, arguments):
    """What they do not know is told with their own usage alone."""
    assert main(arguments.split()) == UsageError.exit_code
    told = capsys.readouterr().err
    assert "Unrecognized arguments" in told
    assert "of the script" not in told
    assert told.startswith(f"usage: autorecompute {arguments.split()[0]} ")


def test_a_missing_script_is_all_that_is_missing(capsys):
    """Its arguments may be left out."""
    assert main(["tune"]) == UsageError.exit_code
    assert "are required: SCRIPT. See" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", ["report bert -- -o x.html", "emit bert -- --format json", "show -- bert", "studies list -- --json"]
)
def test_what_nobody_reads_is_refused(capsys, tmp_path, monkeypatch, arguments):
    """A verb that starts no script ignores nothing that follows the dashes."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments.split()) == UsageError.exit_code
    assert "nothing can follow --" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
