import json
import shlex
import signal
import time

import pytest
from jsonschema import Draft202012Validator

from autorecompute.cli.parsers import in_a_name
from autorecompute.errors import UsageError
from autorecompute.schemas import schema_of
from autorecompute.studies import StudyFolder
from autorecompute.studies.folder import using
from autorecompute.studies.storage import TrialStore
from autorecompute.trials import Job
from autorecompute.tuning.session import default_name


@pytest.fixture(autouse=True)
def _script(tmp_path):
    (tmp_path / "train.py").write_text("raise SystemExit('a unit test does not train')\n")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("tune no.py", "no script 'no.py'"),
        ("tune train.py --memory-limit '40 gigs'", "'40 gigs'"),
        ("tune train.py --memory-limit -1GiB", "--memory-limit"),
        ("tune train.py --timeout soon", "'soon'"),
        ("tune train.py --study a/b", "'a/b'"),
        ("tune train.py --study ''", "'' cannot name a study"),
        ("tune train.py --study=--", "'--study=--' has no value"),
        ("tune train.py --max-trials 0", "--max-trials"),
        ("tune train.py -- --bs {batch}", "--target-batch"),
        ("tune train.py --batch-flag --bs", "--target-batch"),
        ("tune train.py --target-batch many", "'many' is neither"),
        ("tune train.py --batches 8,,16", "'' is not a positive whole number"),
        ("tune train.py --batches 8,16,8", "batch 8 is named twice"),
        ("tune train.py --batches 8,0", "'0' is not a positive whole number"),
        ("tune train.py --batches 8,16 --target-batch 32", "not allowed with"),
        ('tune train.py --launcher "it\'s"', "--launcher"),
        ("tune train.py --memory 1GiB", "Unrecognized arguments: --memory"),
        ("tune train.py --storage ''", "--storage is empty"),
        ("tune", "No script is given. Name it first: autorecompute tune SCRIPT"),
        ("tune --target-batch 8 -- python train.py --bs 8", "python: autorecompute tune train.py ... -- --bs 8"),
        ("tune -- python -u -m pkg.train --bs 8", "python: autorecompute tune -m pkg.train ... -- --bs 8"),
        ("tune python train.py", "SCRIPT comes without python: autorecompute tune train.py."),
        ("tune python train.py --bs 8", "SCRIPT comes without python: autorecompute tune train.py -- --bs 8."),
        ("train python3.12 -- train.py", "SCRIPT comes without python3.12: autorecompute train train.py ..."),
        ("tune train.py --batch 4", "In 'autorecompute tune' that is --target-batch 4."),
        ("plans train.py --target-batch=4", "In 'autorecompute plans' that is --batch=4."),
        ("tune train.py --max-trails 4", "In 'autorecompute tune' that is --max-trials 4."),
        ("run bert python train.py", "The command comes after --: autorecompute run bert -- python train.py."),
        ("check bert train.py", "The command comes after --: autorecompute check bert -- train.py."),
        ("plans no.py", "no script 'no.py'"),
        ("plans train.py --batch 0", "--batch"),
        ("plans train.py --fake --memory-limit 40", "Write a unit with it, such as 40GiB"),
        ("plans train.py --fake --memory-limit 100kb", "is 100000 bytes. Give it 1MiB at least"),
        ("plans train.py --dim sequence", "'sequence'"),
        ("plans train.py --dim sequence=0", "--dim"),
        ("plans train.py --log-level loud", "'loud'"),
        ("plans train.py --batch-flag=--bs", "--batch N"),
        ("plans train.py -- --bs {batch}", "--batch N"),
        ("train train.py --batch-size 32", "autorecompute train train.py -- --batch-size 32."),
        ("tune train.py --steps 3 --bs 8", "autorecompute tune train.py ... -- --bs 8."),
        ("plans train.py --bs 8", "autorecompute plans train.py -- --bs 8."),
        ("tune --steps 3 train.py --bs 8", "Arguments of the script come after --. "),
        ("report bert -- -o x.html", "nothing can follow --"),
        ("studies list -- --json", "nothing can follow --"),
        ("show no-such-study", "'no-such-study'"),
        ("report no-such-study", "'no-such-study'"),
        ("show --why", "--why"),
        ("no-such-verb", "no-such-verb"),
        ("", "VERB"),
        ("studies", "ACTION"),
        ("studies rename", "rename"),
        ("studies show a/b", "no study 'b' in"),
        ("studies export 'a\x1b[31m\nb'", "'a\\x1b[31m\\nb'"),
        ("studies import no-such-file", "no-such-file"),
        ("studies delete", "STUDY"),
        ("studies delete no-such-study", "no-such-study"),
        ("check", "STUDY"),
        ("check no-such-study", "no-such-study"),
        ("check bert --steps 0", "--steps"),
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
        *("tune train.py --storage oracle://{}", "show {}", "{}"),
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


def test_no_studies_are_no_error_and_a_mistake_may_be_long(call):
    """Looking for an address in it takes no square of its length, which would be hours."""
    assert "Unrecognized arguments: xxx" in call("show", "bert", "x" * 200_000)[2]
    code, out, err = call("show")
    assert (code, err) == (0, "")
    assert "autorecompute tune" in out
    assert json.loads(call("show", "--json")[1]) == {"studies": []}


def test_a_study_that_is_being_tuned_is_refused_to_a_second_tuning(call, begin):
    """Whether it waited or not, it would go on from what it read before."""
    with using(begin()):
        code, out, err = call("tune", "train.py", "--study", "bert", "--target-batch", "8")
    assert (code, out) == (UsageError.exit_code, "")
    assert "is using study 'bert'. Wait for it" in err


@pytest.mark.parametrize("has_database", [False, True])
def test_a_study_that_has_just_begun_can_be_shown_and_exported(call, begin, has_database):
    folder = begin()
    if has_database:
        folder.database.touch()
    code, out, err = call("show", "bert")
    assert (code, err) == (0, "")
    assert "No answer yet" in out
    assert json.loads(call("show", "bert", "--json")[1])["result"] is None
    assert call("studies", "export", "bert")[0] == 0


def test_a_renamed_study_is_the_study_it_was(call, begin, make_space, make_trial):
    folder = begin()
    TrialStore(folder.database, "bert", make_space(), 2**30).add(make_trial())
    folder.path.rename(folder.path.with_name("moved"))
    code, out, err = call("show", "moved", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["trials"]) == 1


def test_a_name_is_the_same_for_the_same_command(tmp_path):
    def name_for(batch=32, limit_bytes=2**30, **job):
        return default_name(Job(script=tmp_path / "train.py", **job), batch, limit_bytes)

    name = name_for()
    assert name == name_for()
    assert "train" in name
    assert "b32" in name
    others = [name_for(16), name_for(in_a_name(())), name_for(in_a_name((8, 16))), name_for(32, 2**31)]
    others += [name_for(None, None), name_for(arguments=("--seed", "1")), name_for(backend="torch")]
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
        *("tune no.py", "tune train.py --steps many", "plans train.py", "show no-such-study", "check no-such-study"),
        *("studies show no-such-study", "doctor --backend no-such-backend"),
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


def left_in(folder):
    return [path for own in folder.glob("autorecompute-*") for path in own.iterdir()]


def test_plans_that_fail_or_are_interrupted_leave_no_folder_and_show_what_the_script_printed(start, tmp_path):
    temporary = tmp_path / "t"
    temporary.mkdir()
    (tmp_path / "train.py").write_text("print('hello from the script')\nraise SystemExit(3)\n")
    process = start("plans", "train.py", TMPDIR=str(temporary))
    _, err = process.communicate()
    assert process.returncode == 5
    assert "hello from the script" in err.splitlines()
    assert str(temporary) not in err
    assert left_in(temporary) == []
    (tmp_path / "train.py").write_text("import pathlib, time\npathlib.Path('running').touch()\ntime.sleep(600)\n")
    process = start("plans", "train.py", TMPDIR=str(temporary))
    while not (tmp_path / "running").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130
    assert left_in(temporary) == []
