"""What lies in a study, studies that cannot be gone on with as they are, and studies that others start from."""

import json
import re
from pathlib import Path

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.studies.folder import LOCK
from autorecompute.studies.importing import strangers_in
from workplace import own_disk

LIMITED = ("--memory-limit", "320MiB", "--max-trials", "4", "--json")
"""At 10 samples 350 MiB are needed without recompute."""


@pytest.fixture(scope="module")
def tune(place):
    def tune(study, batch, *options):
        return place.tune(*LIMITED, "--study", study, "--target-batch", str(batch), *options)

    return tune


@pytest.fixture(scope="module")
def mine(tune, place):
    """The study ``mine``, and how its tuning ended."""
    tuned = tune("mine", 10)
    assert tuned.code == 0, tuned.stderr
    assert tuned.answer["best"]["config"]
    return place.study("mine"), tuned


def test_a_tuning_leaves_its_study_and_no_half_file_or_one_that_keeps_it_from_being_deleted(mine, place, temporary):
    """No file of the study is a draft, none is empty but outputs and the lock, and no folder of a worker stays."""
    study, _ = mine
    assert {path.name for path in place.path.iterdir()} == {"studies", "train.py"}
    files = [file for file in study.path.rglob("*") if file.is_file()]
    assert {file.name for file in files if file.suffix not in {".json", ".log", ".txt", ".db"}} == {".gitignore", LOCK}
    assert all(file.stat().st_size for file in files if file.suffix != ".log" and file.name != LOCK)
    assert list(Path(temporary).glob("autorecompute-*/worker-*")) == []
    assert strangers_in(StudyFolder(study.path.name, study.path.parent)) == []


def test_a_study_of_another_format_is_refused_before_the_script_starts_and_left_alone(mine, tune):
    study, _ = mine
    file, logs = study.path / "study.json", study.logs
    known = file.read_text()
    provenance = json.loads(known)
    other = json.dumps({**provenance, "format": provenance["format"] + 1, "autorecompute": "99.1"})
    file.write_text(other)
    try:
        refused = tune("mine", 10)
        assert file.read_text() == other
    finally:
        file.write_text(known)
    assert refused.code == 2
    assert "99.1" in refused.complaint
    assert "--study" in refused.complaint
    assert study.logs == logs


def test_the_same_problem_costs_no_trial_in_another_study(mine, tune, place):
    again = tune("again", 10)
    assert again.code == 0, again.stderr
    assert again.trial_lines == []
    assert again.answer["best"]["config"] == mine[1].answer["best"]["config"]
    assert again.answer["transferred_from"] == {"study": "mine", "differences": []}
    (path,) = again.answer["best"]["env"].values()
    assert path == str(place.study("again").path / "best" / "plans.json")


def test_another_batch_starts_from_what_was_found(mine, tune, place):
    larger = tune("larger", 11)
    assert larger.code == 0, larger.stderr
    assert re.search("warm start from study (mine|again)", larger.stderr)
    assert "batch 11, not 10" in larger.stderr
    first, second, *_ = place.study("larger").trials
    assert first["config"] == []
    source = larger.answer["transferred_from"]["study"]
    assert (second["config"], second["reason"]) == (mine[1].answer["best"]["config"], f"answer of study {source}")


def test_a_full_disk_keeps_the_trials_so_far_and_with_room_again_it_goes_on(desk):
    search = ("--memory-limit", "410MiB", "--sampler", "greedy", "--max-trials", "2")
    with own_disk(desk.path, 2):
        (desk.path / "train.py").touch()
        failed = desk.tune(*search, FAKE_FAULT="fill@1")
        assert failed.code == 3, failed.stderr
        assert "disk is full" in failed.complaint
        assert "Traceback" not in failed.stderr
        (desk.path / "filler").unlink()
        assert desk.study().count_rows() == 1
        resumed = desk.tune(*search)
        assert resumed.code == 4, resumed.stderr
        assert "of an earlier session" in resumed.stderr
        assert desk.study().count_rows() == 2
