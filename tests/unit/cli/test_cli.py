import json
import shlex
import signal
import time

import pytest
from jsonschema import Draft202012Validator

from autorecompute.cli.batch_options import in_a_name
from autorecompute.errors import SetupError, UsageError
from autorecompute.schemas import schema_of
from autorecompute.studies import StudyFolder
from autorecompute.studies.use import using
from autorecompute.trials import Job
from autorecompute.tuning.session import default_name


@pytest.fixture(autouse=True)
def _script(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('a unit test does not train')\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune train.py --memory-limit '40 gigs'", "'40 gigs'"),
        ("tune train.py --study ''", "'' cannot name a study"),
        ("tune train.py --study=--", "'--study=--' has no value"),
        ("tune train.py --max-trials 0", "--max-trials"),
        ("tune train.py --batch-flag --bs", "--target-batch"),
        ("tune train.py --target-batch many", "'many' is neither"),
        ("tune train.py --batches 8,,16", "'' is not a positive number"),
        ("tune train.py --batches 8,16,8", "batch 8 is named twice"),
        ("tune train.py --batches 8,16 --target-batch 32", "not allowed with"),
        ('tune train.py --launcher "it\'s"', "--launcher"),
        ("tune train.py --memory 1GiB", "Unrecognized arguments: --memory"),
        ("tune train.py --storage ''", "--storage is empty"),
        ("tune", "are required: SCRIPT. See"),
        ("plans train.py --fake --memory-limit 40", "Write a unit with it, such as 40GiB"),
        ("plans train.py --fake --memory-limit 100kb", "is 100000 bytes. Give it 1MiB at least"),
        ("plans train.py --dim sequence", "'sequence'"),
        ("plans train.py --dim sequence=0", "--dim"),
        ("plans train.py -- --bs {batch}", "--batch N"),
        ("train train.py --batch-size 32", "autorecompute train train.py -- --batch-size 32."),
        ("tune train.py --steps 3 --bs 8", "autorecompute tune train.py ... -- --bs 8."),
        ("tune --steps 3 train.py --bs 8", "Arguments of the script come after --. "),
        ("report bert -- -o x.html", "nothing can follow --"),
        ("show --why", "--why"),
        ("no-such-verb", "no-such-verb"),
        ("", "VERB"),
        ("studies", "ACTION"),
        ("studies compare bert", "STUDY"),
        ("studies compare a/b c", "'a/b'"),
        ("studies export 'a\x1b[31m\nb'", "'a\\x1b[31m\\nb'"),
    ],
)
def test_a_wrong_usage_is_one_sentence_and_leaves_nothing(call, tmp_path, command, words):
    code, out, err = call(*shlex.split(command))
    assert (code, out) == (UsageError.exit_code, "")
    assert words in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("autorecompute")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("command", ["train train.py 8", "show bert 8", "report bert --json", "studies list --why"])
def test_only_verbs_that_start_a_script_speak_of_its_arguments(call, command):
    _, _, err = call(*command.split())
    assert err.startswith(f"usage: autorecompute {command.split()[0]} ")
    assert ("of the script" in err) == ("SCRIPT [-- ARGUMENT ...]" in err) == ("train.py" in command)


@pytest.mark.parametrize(
    "command",
    [
        *("studies list --storage {}", "studies list --storage={}", "tune train.py --storag {}", "tune train.py {}"),
        *("tune train.py --storag={}", "tune --storage train.py {}", "tune train.py --max-trials {}"),
        *("tune train.py --storage journal:{}", "show {}", "{}"),
    ],
)
def test_an_address_in_the_wrong_place_is_not_repeated(call, tmp_path, command):
    code, out, err = call(*[word.format("postgresql://ada:s3cr3t p4rt@127.0.0.1:1/db") for word in command.split()])
    assert code == UsageError.exit_code
    assert "s3cr3t" not in out + err
    assert "p4rt" not in out + err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("arguments", [["prune", "\x1b[2J"], ["prune", "a\u202eb"], ["--\x9b31m"]])
def test_a_mistake_is_repeated_without_what_a_terminal_obeys(call, arguments):
    code, _, err = call("studies", *arguments)
    assert code == UsageError.exit_code
    assert not set("\x1b\x9b\u202e").intersection(err)


def test_a_mistake_may_be_long(call):
    """Looking for an address in it takes no square of its length, which would be hours."""
    assert "Unrecognized arguments: xxx" in call("show", "bert", "x" * 200_000)[2]


def test_a_launcher_that_does_not_exist_is_the_machines_fault(call):
    code, out, err = call("tune", "train.py", "--launcher", "no-such-launcher")
    assert (code, out) == (SetupError.exit_code, "")
    assert "'no-such-launcher'" in err.splitlines()[-1]


def test_a_study_that_is_being_tuned_is_refused_to_a_second_tuning(call, begin):
    """Whether it waited or not, it would go on from what it read before."""
    with using(begin()):
        code, out, err = call("tune", "train.py", "--study", "bert", "--target-batch", "8")
    assert (code, out) == (UsageError.exit_code, "")
    assert "is using study 'bert'. Wait for it" in err


def test_no_studies_are_no_error(call):
    code, out, err = call("show")
    assert (code, err) == (0, "")
    assert "autorecompute tune" in out
    assert json.loads(call("show", "--json")[1]) == {"studies": []}


def test_a_study_that_has_just_begun_can_be_shown_and_exported(call, begin):
    folder = begin()
    folder.database.touch()
    code, out, err = call("show", "bert")
    assert (code, err) == (0, "")
    assert "No answer yet" in out
    assert json.loads(call("show", "bert", "--json")[1])["result"] is None
    assert call("studies", "export", "bert")[0] == 0
    assert folder.database.read_bytes() == b""


def test_a_renamed_study_is_the_study_it_was(call, begin, make_trial):
    folder = begin(trials=[make_trial()])
    folder.path.rename(folder.path.with_name("moved"))
    code, out, err = call("show", "moved", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["trials"]) == 1


def test_a_name_is_the_same_for_the_same_command(tmp_path):
    script = tmp_path / "train.py"
    job = Job(script=script)
    name = default_name(job, 32, 2**30)
    assert name == default_name(job, 32, 2**30)
    assert "train-b32" in name
    asked = ((16, 2**30), (in_a_name(()), 2**30), (in_a_name((8, 16)), 2**30), (32, 2**31), (None, None))
    others = [default_name(job, *batch_and_limit) for batch_and_limit in asked]
    jobs = (Job(script=script, arguments=("1",)), Job(script=script, wrap=True))
    others += [default_name(other, 32, 2**30) for other in jobs]
    assert len({name, *others}) == 8


@pytest.mark.parametrize(
    "place", [".cache/train.py", "--x/train.py", f"{'d' * 200}/{'e' * 200}.py", f"{'言' * 45}/{'訓' * 25}.py"]
)
def test_a_default_name_can_be_given_to_every_verb(tmp_path, place):
    script = tmp_path / place
    script.parent.mkdir()
    script.touch()
    name = default_name(Job(script=script), 32, None)
    assert not name.startswith("-")
    assert not StudyFolder(name, tmp_path).exists()


@pytest.mark.parametrize(
    "command",
    [
        "tune no.py",
        "tune train.py --steps many",
        "plans train.py",
        "show no-such-study",
        "check no-such-study",
        "studies show no-such-study",
        "studies compare no-such-study another",
        "doctor --backend no-such-backend",
    ],
)
def test_a_verb_without_an_answer_says_why_in_json(call, command):
    code, out, err = call(*command.split(), "--json")
    assert code != 0
    told = json.loads(out)
    Draft202012Validator(schema_of("failure")).validate(told)
    assert told["exit_code"] == code
    assert told["error"] in err


@pytest.mark.parametrize("argument", ["--", "--json"])
def test_what_follows_two_dashes_asks_for_no_json(call, argument):
    assert call("tune", "no.py", "--", argument)[1] == ""


@pytest.mark.parametrize(("then", "code"), [("raise SystemExit(3)", 5), ("time.sleep(600)", 130)])
def test_failed_and_interrupted_plans_leave_no_folder_and_show_what_was_printed(start, tmp_path, then, code):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    script = "import pathlib, time\nprint('hello from the script', flush=True)\npathlib.Path('running').touch()\n"
    (tmp_path / "train.py").write_text(script + then)
    process = start("plans", "train.py", TMPDIR=str(temporary))
    while code == 130 and not (tmp_path / "running").exists():
        assert process.poll() is None
        time.sleep(0.05)
    if code == 130:
        process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == code
    assert ("hello from the script" in err.splitlines()) == (code == 5)
    assert str(temporary) not in err
    assert [path for own in temporary.glob("autorecompute-*") for path in own.iterdir()] == []
