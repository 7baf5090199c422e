import os
import signal
import sys
from pathlib import Path

import pytest

from autorecompute.cli import tune
from autorecompute.cli.parsers import STORAGE_VARIABLE
from autorecompute.errors import SetupError, UsageError
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.problem import Head
from autorecompute.studies.records import note_shared
from autorecompute.studies.shared_study import SharedStudy
from autorecompute.studies.storage import parse_storage
from autorecompute.tuning import session
from stand_ins.studies import COMMAND


@pytest.fixture(autouse=True)
def _script(tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')")


NO_SERVER = "postgresql://ada:s3cr3t@127.0.0.1:1/db"
NOBODY_ANSWERS = "postgresql://ada@127.0.0.1:1/db cannot be used"


@pytest.mark.parametrize(
    ("variable", "options", "error", "words"),
    [
        (None, ["--storage", "oracle://ada:s3cr3t@host/db"], UsageError, "knows postgresql://USER@HOST/DATABASE"),
        (None, ["--storage", NO_SERVER], SetupError, NOBODY_ANSWERS),
        (None, ["--storage", "sqlite:///log", "--batches", "1,2"], UsageError, "Leave --storage away"),
        ("sqlite:///log", ["--knobs"], UsageError, "Unset AUTORECOMPUTE_STORAGE"),
        ("oracle://ada:s3cr3t@host/db", [], UsageError, "AUTORECOMPUTE_STORAGE knows"),
        (NO_SERVER, [], SetupError, NOBODY_ANSWERS),
        ("", ["--launcher", "no-such-launcher"], SetupError, "no-such-launcher"),
    ],
)
def test_a_storage_that_cannot_be_shared_is_told_without_its_password_and_no_script_sees_the_variable(  # noqa: PLR0917
    call, monkeypatch, tmp_path, variable, options, error, words
):
    if variable is not None:
        monkeypatch.setenv(STORAGE_VARIABLE, variable)
    code, out, err = call("tune", "train.py", *options)
    assert code == error.exit_code
    assert words in err
    assert variable is None or "--storage" not in err
    assert STORAGE_VARIABLE not in os.environ
    assert "s3cr3t" not in out + err
    assert not any(b"s3cr3t" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_folder_of_another_study_is_refused_before_anything_is_begun(call, begin, tmp_path, is_shared):
    folder = begin()
    if is_shared:
        note_shared(folder, "token", "sqlite:////elsewhere")
    code, _, err = call("tune", "train.py", "--study", "bert", "--storage", "sqlite:///log")
    assert code == UsageError.exit_code
    assert "not the one in the storage" in err
    assert not (tmp_path / "ran").exists()


def test_what_a_worker_finds_is_told(call, tmp_path, make_detection, make_space):
    arguments = ("tune", "train.py", "--study", "bert", "--storage", "sqlite:///log")
    assert f"shared in sqlite:///{tmp_path}/log: new" in call(*arguments)[2]
    worker = SharedStudy(parse_storage(f"sqlite:///{tmp_path}/log"), "bert")
    head = Head.of("bert", COMMAND, Problem.of(make_detection(), 2**30), Sizes.of(make_detection()))
    worker.join(head, make_space(), is_limit_free=False)
    worker.close()
    assert "/log: 0 trials so far" in call(*arguments)[2]


@pytest.fixture
def _bench(monkeypatch):
    """Starting a script fails with the limit that it would have had."""

    def make_bench(*_, **options):
        raise SetupError(f"with {options['limit_bytes']}")

    monkeypatch.setattr(session, "Bench", make_bench)


def test_a_signal_behind_the_answer_interrupts_nothing(call, monkeypatch):
    """The last worker may take seconds to end: what is printed by then stays the only object, with its exit code."""

    def answer(_session, *, as_json):
        assert as_json
        sys.stdout.write("{}\n")
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(tune, "_tune", answer)
    assert call("tune", "train.py", "--json")[:2] == (0, "{}\n")


@pytest.mark.usefixtures("_bench")
@pytest.mark.parametrize(("options", "limit_bytes"), [((), 2**30), (("--memory-limit", "2GiB"), 2**31)])
def test_a_study_goes_on_under_the_limit_that_it_began_with(begin, call, options, limit_bytes):
    begin()
    code, _, err = call("tune", "train.py", "--study", "bert", *options)
    assert code == SetupError.exit_code
    assert err.endswith(f"with {limit_bytes}\n")


@pytest.mark.usefixtures("_bench")
@pytest.mark.parametrize(
    ("options", "longest"), [(("--batches", "8,48"), 196), (("--target-batch", "auto"), 188)], ids=["batches", "auto"]
)
def test_a_name_without_room_for_those_of_the_batches_is_refused_at_once(call, options, longest):
    command = ("tune", "train.py", *options, "--memory-limit", "1GiB", "--study")
    code, _, err = call(*command, "x" * (longest + 1))
    assert code == UsageError.exit_code
    assert f"use up to {longest} bytes for NAME.\n" in err
    assert not Path("studies").exists()
    assert call(*command, "x" * longest)[0] == SetupError.exit_code
    assert StudyFolder("x" * longest).path.exists()
