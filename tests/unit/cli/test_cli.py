"""The command line as a process: exit codes, one sentence for each mistake, and nothing left behind."""

import argparse
import dataclasses
import json
import signal
import time

import psutil
import pytest
from jsonschema import Draft202012Validator

from autorecompute.cli import main, make_parser
from autorecompute.cli.batch_options import in_a_name
from autorecompute.errors import InterruptedByUser, SetupError, UsageError
from autorecompute.figures import KnobFigures
from autorecompute.measurement import Outcome
from autorecompute.schemas import schema_of
from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import TrialStore
from autorecompute.studies.use import using
from autorecompute.trials import Job
from autorecompute.tuning.session import default_name

HANGS = "#!/bin/sh\nexec sleep 600\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tune", "no.py"], "no script 'no.py'"),
        (["tune", "train.py", "--memory-limit", "40 gigs"], "'40 gigs'"),
        (["tune", "train.py", "--memory-limit", "-1GiB"], "--memory-limit"),
        (["tune", "train.py", "--memory-limit", "0"], "'0'"),
        (["tune", "train.py", "--timeout", "soon"], "'soon'"),
        (["tune", "train.py", "--study", "a/b"], "'a/b'"),
        (["tune", "train.py", "--study", ""], "'' cannot name a study"),
        (["tune", "train.py", "--max-trials", "0"], "--max-trials"),
        (["tune", "train.py", "--steps", "many"], "--steps"),
        (["tune", "train.py", "--", "--bs", "{batch}"], "--target-batch"),
        (["tune", "train.py", "--batch-flag", "--bs"], "--target-batch"),
        (["tune", "train.py", "--batch-flag=--bs"], "--target-batch"),
        (["tune", "train.py", "--target-batch", "many"], "'many' is neither"),
        (["tune", "train.py", "--target-batch", "0"], "'0'"),
        (["tune", "train.py", "--batches", "8,,16"], "'' is not a positive number"),
        (["tune", "train.py", "--batches", "8,16,8"], "batch 8 is named twice"),
        (["tune", "train.py", "--batches", "8,0"], "'0' is not a positive number"),
        (["tune", "train.py", "--batches", "auto"], "'auto' is not a positive number"),
        (["tune", "train.py", "--batches", "8,16", "--target-batch", "32"], "not allowed with"),
        (["tune", "train.py", "--target-batch", "auto", "--batches", "8,16"], "not allowed with"),
        (["tune", "no.py", "--target-batch", "auto"], "no script 'no.py'"),
        (["tune", "train.py", "--launcher", "it's"], "--launcher"),
        (["tune"], "SCRIPT"),
        (["plans", "no.py"], "no script 'no.py'"),
        (["plans", "train.py", "--batch", "0"], "--batch"),
        (["plans", "train.py", "--fake", "--memory-limit", "40"], "Write a unit with it, such as 40GiB"),
        (["plans", "train.py", "--fake", "--memory-limit", "100kb"], "is 100000 bytes. Give it 1MiB at least"),
        (["plans", "train.py", "--dim", "sequence"], "'sequence'"),
        (["plans", "train.py", "--dim", "=4"], "'=4'"),
        (["plans", "train.py", "--dim", "sequence=0"], "--dim"),
        (["plans", "train.py", "--dim", "sequence=long"], "--dim"),
        (["plans", "train.py", "--log-level", "loud"], "'loud'"),
        (["plans", "train.py", "--batch-flag=--bs"], "--batch N"),
        (["plans", "train.py", "--", "--bs", "{batch}"], "--batch N"),
        (["show", "no-such-study"], "'no-such-study'"),
        (["no-such-verb"], "no-such-verb"),
        ([], "VERB"),
        (["tune", "train.py", "--memory", "1GiB"], "Unrecognized arguments: --memory"),
        (["tune", "train.py", "--storage", ""], "--storage is empty"),
        (["tune", "train.py", "--study=--"], "'--study=--' has no value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_usage_is_one_sentence_and_leaves_nothing(run, tmp_path, arguments, words):
    """A mistake ends with code 2, names what was wrong in its last line, prints no data and makes no file."""
    code, out, err = run(*arguments)
    assert (code, out) == (UsageError.exit_code, "")
    assert "Traceback" not in err
    assert words in err.splitlines()[-1]
    assert err.splitlines()[-1].startswith("autorecompute")
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["studies", "list", "--storage", "{}"],
        ["studies", "list", "--storage={}"],
        ["tune", "train.py", "--storag", "{}"],
        ["tune", "train.py", "--storag={}"],
        ["tune", "train.py", "{}"],
        ["tune", "--storage", "train.py", "{}"],
        ["tune", "train.py", "--max-trials", "{}"],
        ["tune", "train.py", "--storage", "journal:{}"],
        ["show", "{}"],
        ["{}"],
    ],
    ids=" ".join,
)
def test_an_address_in_the_wrong_place_is_not_repeated(capsys, tmp_path, monkeypatch, arguments):
    """Whatever is given an address by mistake, the sentence that says so has no part of its password."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    code = 0
    try:
        code = main([argument.format("postgresql://ada:s3cr3t p4rt@127.0.0.1:1/db") for argument in arguments])
    except SystemExit as usage:
        code = usage.code
    told = "".join(capsys.readouterr())
    assert code == UsageError.exit_code
    assert "s3cr3t" not in told
    assert "p4rt" not in told
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("arguments", [["prune", "\x1b[2J"], ["prune", "a\u202eb"], ["--\x9b31m"]])
def test_a_mistake_is_repeated_without_what_a_terminal_obeys(capsys, arguments):
    """A word that no verb knows is written out with its escape sequences as text."""
    assert main(["studies", *arguments]) == UsageError.exit_code
    assert not set("\x1b\x9b\u202e").intersection(capsys.readouterr().err)


def test_a_long_mistake_is_told_at_once(capsys):
    """Looking for an address in it takes time in proportion to its length."""
    began = time.process_time()
    assert main(["show", "bert", "x" * 200_000]) == UsageError.exit_code
    assert time.process_time() - began < 5
    assert "Unrecognized arguments: xxx" in capsys.readouterr().err


def test_a_launcher_that_does_not_exist_is_the_machines_fault(run):
    """What cannot be started ends with code 3, and its name is in the last sentence."""
    code, out, err = run("tune", "train.py", "--launcher", "no-such-launcher")
    assert (code, out) == (SetupError.exit_code, "")
    assert "'no-such-launcher'" in err.splitlines()[-1]
    assert "Traceback" not in err


def test_a_folder_that_cannot_be_written_is_the_machines_fault(run, tmp_path):
    """Where studies cannot be kept, nothing is started."""
    (tmp_path / "studies").write_text("not a folder")
    code, out, err = run("tune", "train.py")
    assert (code, out) == (SetupError.exit_code, "")
    assert "cannot be written" in err
    assert len(err.splitlines()) == 1


def test_a_study_of_another_version_is_refused_before_anything_runs(run, begin):
    """``tune`` and ``show`` both refuse it, and leave it as it is."""
    file = begin("bert").path / "study.json"
    file.write_text(json.dumps({"format": 99, "autorecompute": "9.8.7"}))
    before = file.read_text()
    for arguments in (["tune", "train.py", "--study", "bert"], ["show", "bert"]):
        code, _, err = run(*arguments)
        assert code == UsageError.exit_code
        assert "9.8.7" in err
    assert file.read_text() == before


def test_a_damaged_study_is_refused_in_one_sentence(run, begin):
    """A study file that was cut off ends with code 3 and its path."""
    (begin("bert").path / "study.json").write_text('{"format"')
    code, out, err = run("show", "bert")
    assert (code, out, len(err.splitlines())) == (SetupError.exit_code, "", 1)
    assert "study.json" in err


def test_a_study_that_is_being_tuned_is_refused_to_a_second_tuning(run, begin):
    """Whether it waited or not, it would go on from what it read before."""
    with using(begin("bert")):
        code, out, err = run("tune", "train.py", "--study", "bert", "--target-batch", "8")
    assert (code, out) == (2, "")
    assert "is using study 'bert'. Wait for it" in err


def test_no_studies_are_no_error(run):
    """An empty list says how to begin, and is an empty list for a program."""
    code, out, err = run("show")
    assert (code, err) == (0, "")
    assert "autorecompute tune" in out
    assert json.loads(run("show", "--json")[1]) == {"studies": []}


def test_the_list_survives_a_study_that_cannot_be_read(run, begin):
    """``show`` lists the others, and says of the broken one what is wrong."""
    for name in ("bert", "broken", "gpt"):
        begin(name)
    (begin("broken").path / "study.json").write_text("{")
    code, out, _ = run("show", "--json")
    studies = {study["study"]: study for study in json.loads(out)["studies"]}
    assert code == 0
    assert list(studies) == ["bert", "broken", "gpt"]
    assert "cannot be read" in studies["broken"]["note"]
    assert studies["gpt"]["problem"] is not None


def test_a_study_without_an_answer_can_be_shown(run, begin):
    """A study that was begun and not finished says so, and has a ``null`` for its answer."""
    begin("bert")
    code, out, _ = run("show", "bert")
    assert code == 0
    assert "No answer yet" in out
    assert json.loads(run("show", "bert", "--json")[1])["result"] is None


def test_knobs_are_shown_with_the_answer(run, begin, make_result):
    """``show`` tells what was tried and what was not, on the screen and as JSON."""
    tried = KnobFigures(
        name="huge_pages",
        outcome=Outcome.OK,
        throughput_ratio=1.08,
        low=1.05,
        high=1.11,
        kept=True,
    )
    untried = KnobFigures(name="triton", why_not="it is for CUDA only")
    begin("bert").finish(dataclasses.replace(make_result(), trials=0, knobs=(tried, untried)))
    code, out, _ = run("show", "bert")
    assert code == 0
    for words in ("huge_pages", "1.08x", "1.05-1.11", "kept", "triton was not tried: it is for CUDA only"):
        assert words in out
    knobs = json.loads(run("show", "bert", "--json")[1])["result"]["knobs"]
    assert [(knob["name"], knob["throughput_ratio"], knob["kept"]) for knob in knobs] == [
        ("huge_pages", 1.08, True),
        ("triton", None, False),
    ]


def test_a_study_that_was_ended_before_its_first_trial_can_be_shown(run, begin):
    """A database that was made and never written to belongs to a study without trials."""
    begin("bert").database.touch()
    code, out, err = run("show", "bert")
    assert (code, err) == (0, "")
    assert "No answer yet" in out


def test_a_renamed_study_is_the_study_it_was(run, begin, make_space, make_trial):
    """Trials are found in a folder that was renamed, under its new name."""
    folder = begin("bert")
    TrialStore(folder.database, "bert", make_space(), 2**30).add(make_trial())
    folder.path.rename(folder.path.with_name("moved"))
    code, out, err = run("show", "moved", "--json")
    assert (code, err) == (0, "")
    assert len(json.loads(out)["trials"]) == 1


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_reader_that_has_seen_enough_gets_no_traceback(start, begin, options):
    """A pipe that its reader closed ends the command without a word."""
    begin("bert")
    process = start("show", *options)
    process.stdout.close()
    assert (process.wait(timeout=60), process.stderr.read()) == (141, "")
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_everything_and_says_how_to_go_on(start, tmp_path, number):
    """Ctrl-C and SIGTERM end with code 130 and one sentence, the workers are gone and the study is kept."""
    launcher = tmp_path / "hangs"
    launcher.write_text(HANGS)
    launcher.chmod(0o755)
    process = start("tune", "train.py", "--study", "bert", "--launcher", str(launcher))
    workers = wait_for_children(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (InterruptedByUser.exit_code, "")
    assert "Traceback" not in err
    assert "The same command goes on" in err.splitlines()[-1]
    assert not any(worker.is_running() for worker in workers)
    assert (tmp_path / "studies" / "bert").is_dir()


def wait_for_children(pid):
    """The processes that the command started, once there are any."""
    for _ in range(600):
        children = psutil.Process(pid).children()
        if any(child.name() == "sleep" for child in children):
            return children
        time.sleep(0.05)
    raise AssertionError("no worker was started")


def test_a_name_is_the_same_for_the_same_command(tmp_path):
    """The default name tells script and batch, and differs when anything of the problem does."""
    script = tmp_path / "train.py"
    script.touch()
    job = Job(script=script)
    name = default_name(job, 32, 2**30)
    assert name == default_name(Job(script=script), 32, 2**30)
    assert "train" in name
    assert "b32" in name
    others = [
        default_name(job, 16, 2**30),
        default_name(job, in_a_name(()), 2**30),
        default_name(job, in_a_name((8, 16)), 2**30),
        default_name(job, 32, 2**31),
        default_name(job, None, None),
        default_name(Job(script=script, arguments=("--seed", "1")), 32, 2**30),
        default_name(Job(script=script, wrap=True), 32, 2**30),
    ]
    assert len({name, *others}) == 8


@pytest.mark.parametrize(
    "place", [".cache/train.py", "--x/train.py", f"{'d' * 200}/{'e' * 200}.py", f"{'言' * 45}/{'訓' * 25}.py"]
)
def test_a_default_name_is_a_name(tmp_path, place):
    """Wherever the script lies, the name that is made of its path can be given to every verb."""
    script = tmp_path / place
    script.parent.mkdir()
    script.touch()
    name = default_name(Job(script=script), 32, None)
    assert not name.startswith("-")
    assert not StudyFolder(name, tmp_path).exists()


WITH_JSON = (
    ("tune", "no.py"),
    ("tune", "train.py", "--steps", "many"),
    ("plans", "train.py"),
    ("show", "no-such-study"),
    ("check", "no-such-study"),
    ("studies", "show", "no-such-study"),
    ("studies", "compare", "no-such-study", "another"),
    ("doctor", "--backend", "no-such-backend"),
)


@pytest.mark.parametrize("arguments", WITH_JSON)
def test_a_verb_without_an_answer_says_why_in_json(run, arguments):
    """Standard output has one object with the message and the exit code, whatever went wrong."""
    code, out, err = run(*arguments, "--json")
    assert code != 0
    told = json.loads(out)
    Draft202012Validator(schema_of("failure")).validate(told)
    assert told["exit_code"] == code
    assert told["error"] in err


def test_every_verb_with_json_is_asked_without_an_answer():
    """A verb that learns ``--json`` is among those that the test above asks; listing what is there cannot fail so."""
    words = {" ".join(arguments[: 2 if arguments[0] == "studies" else 1]) for arguments in WITH_JSON}
    assert words == set(_verbs_with_json(make_parser())) - {"studies list"}


def _verbs_with_json(parser, name=""):
    for action in parser._actions:
        if "--json" in action.option_strings:
            yield name
        if isinstance(action, argparse._SubParsersAction):
            for word, inner in action.choices.items():
                yield from _verbs_with_json(inner, f"{name} {word}".strip())


@pytest.mark.parametrize("argument", ["--", "--json"])
def test_what_follows_two_dashes_asks_for_no_json(run, argument):
    """An option of the script's own that is called so is none of ours."""
    _, out, _ = run("tune", "no.py", "--", argument)
    assert out == ""


def left_in(folder):
    """What there is in the user's own folder for locks, sockets and logs."""
    return [path for own in folder.glob("autorecompute-*") for path in own.iterdir()]


def test_failed_plans_leave_no_folder_and_show_what_the_script_printed(start, tmp_path, monkeypatch):
    """The message points to no file that goes with the command: the output is on standard error."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "train.py").write_text("print('hello from the script')\nraise SystemExit(3)\n")
    process = start("plans", "train.py")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 5
    assert "hello from the script" in err.splitlines()
    assert str(tmp_path / "t") not in err
    assert left_in(tmp_path / "t") == []


def test_interrupted_plans_leave_no_folder(start, tmp_path, monkeypatch):
    """Ctrl-C while the script runs ends it, and takes its output away."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "t"))
    (tmp_path / "t").mkdir()
    (tmp_path / "train.py").write_text("import pathlib, time\npathlib.Path('running').touch()\ntime.sleep(600)\n")
    process = start("plans", "train.py")
    while not (tmp_path / "running").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert left_in(tmp_path / "t") == []
