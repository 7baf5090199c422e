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


SITES = ("*/gelu", "h.*(Block)/gelu", "h.*/gelu", "(Block)/gelu", "a b/ /gelu", "x /y/z")


def test_a_site_is_no_path(exported, make_trial):
    plans = tuple(
        Plan(choices=(Choice(site, "drop"),), label=site, occurrences=4, saving_bytes=10, saving="d0") for site in SITES
    )
    trials = tuple(
        make_trial(
            Config.of((plan,)),
            number=number,
            description=f"{plan.label} dropped",
            outcome=Outcome.OOM,
            message="*/gelu and h.*(Block)/gelu could not be made again",
        )
        for number, plan in enumerate(plans)
    )
    steps = {"steps": [{"name": site} for site in SITES]}
    records, folder, file = exported(plans, trials=trials, extra=steps)
    assert records.head.problem == folder.problem()
    assert records.trials == trials
    assert records.detection.extra == steps
    assert read_records(take(file)).head.sizes.space.plans == plans


PORTABLE = {
    f"{SPACED}/train.py": "train.py",
    f"--data={SPACED}/data": "--data=data",
    "/home/doe, jane/train.py": "train.py",
    f"{SPACED}/one:{SPACED}/two": "one:two",
    f"python '{SPACED}/train.py'": "python 'train.py'",
    "~/projects/train.py": "train.py",
    "s3://bucket/data": "s3://bucket/data",
    "data/train.py": "data/train.py",
}


def test_a_word_of_the_command_that_is_a_path_becomes_its_name(exported):
    records, _, _ = exported(command=list(PORTABLE))
    assert records.head.command == tuple(PORTABLE.values())


def test_quoted_paths_in_messages_lose_their_folders(exported, make_trial):
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
