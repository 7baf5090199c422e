"""What ``tune`` makes of a study that goes on, and of a signal behind its answer."""

import signal
import sys
from pathlib import Path

import pytest

from autorecompute.cli import main, tune
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import StudyFolder
from autorecompute.tuning import session


@pytest.fixture
def _script(tmp_path, monkeypatch):
    """The command runs in a folder that has a script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.usefixtures("_script")
def test_a_signal_behind_the_answer_interrupts_nothing(monkeypatch, capsys):
    """The last worker may take seconds to end: what is printed by then stays the only object, with its exit code."""

    def answer(_session, *, as_json):
        assert as_json
        sys.stdout.write("{}\n")
        signal.raise_signal(signal.SIGINT)
        return 0

    monkeypatch.setattr(tune, "_tune", answer)
    assert main(["tune", "train.py", "--json"]) == 0
    assert capsys.readouterr().out == "{}\n"


@pytest.mark.usefixtures("_script")
@pytest.mark.parametrize(("options", "limit_bytes"), [((), 2**30), (("--memory-limit", "2GiB"), 2**31)])
def test_a_study_goes_on_under_the_limit_that_it_began_with(begin, monkeypatch, capsys, options, limit_bytes):
    """A card lets its trials have no more than that, as in the session before, unless another limit is given."""
    begin("bert")

    def make_bench(*_, **options):
        raise SetupError(f"with {options['limit_bytes']}")

    monkeypatch.setattr(session, "Bench", make_bench)
    assert main(["tune", "train.py", "--study", "bert", *options]) == SetupError.exit_code
    assert capsys.readouterr().err.endswith(f"with {limit_bytes}\n")


@pytest.mark.usefixtures("_script")
@pytest.mark.parametrize(
    ("options", "longest"), [(("--batches", "8,48"), 196), (("--target-batch", "auto"), 188)], ids=["batches", "auto"]
)
def test_a_name_without_room_for_those_of_the_batches_is_refused_at_once(monkeypatch, capsys, options, longest):
    """Before the script is started; the longest name that has room for them is none of those."""

    def make_bench(*_, **__):
        raise SetupError("the script is started")

    monkeypatch.setattr(session, "Bench", make_bench)
    for length, code in ((longest + 1, UsageError.exit_code), (longest, SetupError.exit_code)):
        assert not Path("studies").exists()
        assert main(["tune", "train.py", *options, "--study", "x" * length, "--memory-limit", "1GiB"]) == code
    words = f"use up to {longest} bytes for NAME.\n"
    assert words in capsys.readouterr().err
    assert StudyFolder("x" * longest).path.exists()
