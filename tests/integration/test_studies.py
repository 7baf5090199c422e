"""Studies that cannot be gone on with as they are."""

import contextlib
import json
import subprocess

import pytest


@pytest.fixture
def small_disk(make_workplace):
    """A working directory on a disk of two MiB."""
    place = make_workplace("disk")
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place.path)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place.path)], check=True)


def fill(folder):
    """Leaves no room on the disk of this folder."""
    with (folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))


@pytest.fixture(scope="module")
def tune_mine(in_plain_pytorch):
    """Tunes the classifier at this batch in the study ``mine``."""
    command = ("classifier.py", "--backend", "torch", "--batch-flag=--bs", "--study", "mine")
    return lambda place, batch: place.tune(*command, "--target-batch", str(batch), **in_plain_pytorch)


@pytest.fixture(scope="module")
def finished(make_workplace, tune_mine):
    """A working directory with a finished study named ``mine``."""
    place = make_workplace("finished")
    tuned = tune_mine(place, 10)
    assert tuned.code == 0, tuned.stderr
    return place


def test_a_study_of_another_format_is_left_alone(finished, tune_mine):
    """A study written in another format is refused before the script starts, and stays as it was."""
    file = finished.study("mine").path / "study.json"
    provenance = json.loads(file.read_text())
    other = json.dumps({**provenance, "format": provenance["format"] + 1, "autorecompute": "99.1"})
    logs = finished.study("mine").logs
    file.write_text(other)
    try:
        refused = tune_mine(finished, 10)
        assert file.read_text() == other
    finally:
        file.write_text(json.dumps(provenance))
    assert refused.code == 2
    assert "99.1" in refused.complaint
    assert "--study" in refused.complaint
    assert finished.study("mine").logs == logs


def test_a_study_of_another_problem_is_refused(finished, tune_mine):
    """A study is not mixed with trials of another batch: the sentence names the two and the way out."""
    trials = finished.study("mine").count_rows()
    refused = tune_mine(finished, 11)
    assert refused.code == 2
    assert "batch 11, not 10" in refused.complaint
    assert "--study NAME" in refused.complaint
    assert finished.study("mine").count_rows() == trials


def test_a_full_disk_keeps_the_trials_so_far(small_disk, hopeless):
    """A disk that fills up during the search ends it with a sentence; with room again, it goes on from there."""
    process = small_disk.start_tuning(*hopeless, "--max-trials", "2")
    small_disk.wait_for_trials(process, 1)
    fill(small_disk.path)
    failed = small_disk.finish(process)
    assert failed.code == 3, failed.stderr
    assert "disk is full" in failed.complaint
    assert "Traceback" not in failed.stderr
    (small_disk.path / "filler").unlink()
    assert small_disk.study().count_rows() == 1
    resumed = small_disk.tune(*hopeless, "--max-trials", "2")
    assert resumed.code == 4, resumed.stderr
    assert "of an earlier session" in resumed.stderr
    assert small_disk.study().count_rows() == 2
