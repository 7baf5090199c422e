"""What is left of a script that is stopped in the middle, again and again."""

from pathlib import Path

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.studies.contents import strangers_in
from autorecompute.studies.use import LOCK

TRACKERS = {"wandb", "swanlog", ".neptune", ".cometml-runs", "clearml", "mlruns"}


@pytest.fixture(scope="module")
def place(make_workplace):
    """The working directory of a script that writes checkpoints and tracker runs."""
    return make_workplace("leftovers")


@pytest.fixture(scope="module")
def there_before(temporary):
    """What killed tunings have left of their workers."""
    return workers_in(temporary)


@pytest.fixture(scope="module")
def tuned(place, there_before, in_plain_pytorch):
    """The script, tuned to the end."""
    assert there_before is not None
    return place.tune("logging_run.py", "--backend", "torch", "--target-batch", "6", "--json", **in_plain_pytorch)


def names_in(folder):
    """All that lies in a folder."""
    return {path.name for path in Path(folder).iterdir()}


def workers_in(folder):
    """The folders of workers there."""
    return set(Path(folder).glob("autorecompute-*/worker-*"))


def test_a_stopped_script_leaves_no_process(tuned, place):
    """Neither the script nor the processes that read its data outlive the tuning."""
    assert tuned.code == 0, tuned.stderr
    assert place.processes() == []


def test_a_stopped_script_leaves_its_checkpoints_alone(tuned, place):
    """What the script writes stays where it put it, and the tool adds its study and nothing else."""
    assert tuned.code == 0, tuned.stderr
    assert names_in(place.path) - {"unfinished.pt"} == {"checkpoint.pt", "studies"}


def test_the_tool_leaves_no_half_file(tuned, place, temporary, there_before):
    """No file of the study is a draft, none is empty but outputs and the lock, and no folder of a worker stays."""
    assert tuned.code == 0, tuned.stderr
    files = [file for file in place.study().path.rglob("*") if file.is_file()]
    assert {file.name for file in files if file.suffix not in {".json", ".log", ".txt", ".db"}} == {".gitignore", LOCK}
    assert all(file.stat().st_size for file in files if file.suffix != ".log" and file.name != LOCK)
    assert workers_in(temporary) <= there_before


def test_all_files_of_a_study_are_known_to_be_its_own(tuned, place):
    """A study that the tool made can be deleted: what others put there would be named instead."""
    assert tuned.code == 0, tuned.stderr
    study = place.study().path
    assert strangers_in(StudyFolder(study.name, study.parent)) == []


def test_no_tracker_has_a_run(tuned, place, workplace, in_plain_pytorch):
    """A script that starts a run in every tracker when its user trains starts none when it is tuned."""
    assert tuned.code == 0, tuned.stderr
    script = Path(__file__).parents[1] / "scripts" / "logging_run.py"
    trained = workplace.finish(workplace.start(str(script), "--steps", "2", **in_plain_pytorch))
    assert trained.code == 0, trained.stderr
    assert names_in(workplace.path) >= TRACKERS
    assert not names_in(place.path) & TRACKERS
