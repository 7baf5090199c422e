"""What of a study's texts is a path of the machine, and what only looks like one."""

import dataclasses

import pytest

from autorecompute.measurement import Outcome
from autorecompute.plans import Choice, Config, Plan
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.archive import dump
from autorecompute.studies.archive_reading import read_archive
from autorecompute.studies.detected import keep_detection
from autorecompute.studies.records import read_records
from autorecompute.studies.storage import TrialStore
from stand_ins.archives import take

SPACED = "/home/jane doe/secret project"


@pytest.fixture
def exported(elsewhere, make_detection):
    """What an archive says of a study with these plans, this command, these trials and other parts of its detection."""

    def exported(plans=(), command=("train.py",), trials=(), **parts):
        detection = dataclasses.replace(make_detection(), plans=tuple(plans), own_presets={}, **parts)
        folder = StudyFolder("first", elsewhere / "before")
        folder.prepare()
        problem = Problem.of(detection, 900)
        folder.begin(problem, command, Sizes.of(detection))
        store = TrialStore(folder.database, folder.name, detection.space, problem.limit_bytes)
        for trial in trials:
            store.add(trial)
        keep_detection(folder, detection)
        file = elsewhere / "a.jsonl"
        file.write_bytes(dump(read_records(folder)))
        return read_archive(file), folder, file

    return exported


@pytest.mark.parametrize("site", ["*/gelu", "h.*(Block)/gelu", "h.*/gelu", "(Block)/gelu", "a b/ /gelu", "x /y/z"])
def test_a_site_is_no_path(exported, make_trial, site):
    """Plans, configs, what each is called, and what the backend wants to know of them come back as they were."""
    choice = Choice(site, "drop")
    plan = Plan(choices=(choice,), label=site, occurrences=4, saving_bytes=10, saving="d0")
    trial = make_trial(Config.of((plan,)), description=f"{site} dropped", outcome=Outcome.OOM)
    records, folder, file = exported([plan], trials=[trial], extra={"steps": [{"name": site}]})
    assert records.head.problem == folder.problem()
    assert records.trials == (trial,)
    assert records.detection.extra == {"steps": [{"name": site}]}
    assert read_records(take(file)).head.sizes.space.plans == (plan,)


def test_a_site_in_a_sentence_stays(exported, make_trial):
    """A message that names a place of the model still does."""
    said = "*/gelu and h.*(Block)/gelu could not be made again"
    records, _, _ = exported(trials=[make_trial(outcome=Outcome.SCRIPT_ERROR, message=said)])
    assert records.trials[0].measurement.message == said


@pytest.mark.parametrize(
    ("word", "portable"),
    [
        (f"{SPACED}/train.py", "train.py"),
        (f"--data={SPACED}/data", "--data=data"),
        ("/home/doe, jane/train.py", "train.py"),
        (f"{SPACED}/one:{SPACED}/two", "one:two"),
        (f"python '{SPACED}/train.py'", "python 'train.py'"),
        ("~/projects/train.py", "train.py"),
        ("s3://bucket/data", "s3://bucket/data"),
        ("data/train.py", "data/train.py"),
    ],
)
def test_a_word_of_the_command_that_is_a_path_becomes_its_name(exported, word, portable):
    """Folders may have spaces and commas in their names."""
    records, _, _ = exported(command=["python", word])
    assert records.head.command == ("python", portable)


def test_quoted_paths_in_messages_lose_their_folders(exported, make_trial):
    """Python puts files in quotes, and so do our own messages."""
    trial = make_trial(
        outcome=Outcome.SCRIPT_ERROR,
        message=f"[Errno 2] No such file or directory: '{SPACED}/x.bin'",
        trace=(f'  File "{SPACED}/train.py", line 3', "    a = 'b' / c / 'd'"),
    )
    records, _, file = exported(trials=[trial], extra={"no_steps": f"'{SPACED}/train.py' is missing"})
    measured = records.trials[0].measurement
    assert measured.message == "[Errno 2] No such file or directory: 'x.bin'"
    assert measured.trace == ('  File "train.py", line 3', "    a = 'b' / c / 'd'")
    assert "secret" not in file.read_text()
