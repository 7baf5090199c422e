"""Several workers on one study: they share the trials, and all tell the same answer."""

from __future__ import annotations

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import read_trials
from workers.processes import CHECKED, MEASURED, STUDY, Worker, assert_nothing_is_lost_or_doubled, essence, measured

TRIALS = 14
LIMITED = ("--max-trials", TRIALS)


@pytest.fixture(params=["journal", "postgresql"])
def storage(request, journal, database_url):
    """The URL of an empty storage of each kind."""
    return journal if request.param == "journal" else database_url


@pytest.mark.parametrize("count", [2, 8])
def test_workers_share_the_trials_and_agree(storage, tmp_path, count):
    """No config is measured twice, all trials together are no more than asked for, and one confirms for all."""
    workers = [Worker(storage, tmp_path / f"worker{number}", *LIMITED) for number in range(count)]
    answers = [worker.answer() for worker in workers]
    assert_nothing_is_lost_or_doubled(storage, workers)
    assert len(measured(workers)) <= TRIALS
    assert sum(bool(worker.configs(MEASURED)) for worker in workers) > 1
    assert sum(bool(worker.configs(CHECKED)) for worker in workers) == 1
    assert all(essence(answer) == essence(answers[0]) for answer in answers)
    assert answers[0]["best"]["confirmed"]
    assert answers[0]["trials"] == len(measured(workers))


def test_every_folder_tells_the_whole_study(storage, tmp_path):
    """Each worker's own folder has all trials by the same numbers, and names the variables' file in itself."""
    workers = [Worker(storage, tmp_path / f"worker{number}", *LIMITED) for number in range(2)]
    answers = [worker.answer() for worker in workers]
    folders = [StudyFolder(STUDY, worker.folder / "studies") for worker in workers]
    first, second = (read_trials(folder.database, folder.name_in_database) for folder in folders)
    assert first == second
    assert len(first) == len(measured(workers))
    for answer, folder in zip(answers, folders, strict=True):
        (file,) = answer["best"]["env"].values()
        assert str(folder.path) in file
        assert (folder.path / "best" / "plans.json").exists()


def test_a_later_worker_has_the_answer_at_once(storage, tmp_path):
    """Who comes when all is done measures nothing, and tells the same."""
    first = Worker(storage, tmp_path / "first", *LIMITED)
    answer = first.answer()
    late = Worker(storage, tmp_path / "late", *LIMITED)
    assert essence(late.answer()) == essence(answer)
    assert late.notes == []


@pytest.mark.parametrize(("other", "part"), [(("--device", " B"), "device"), (("--limit-offset", 1 << 20), "limit")])
def test_another_problem_is_refused(storage, tmp_path, other, part):
    """A device or a limit that differs is another problem: wrong usage, and a sentence that names the part."""
    assert Worker(storage, tmp_path / "first", "--max-trials", 1).wait() in {0, 4}
    refused = Worker(storage, tmp_path / "other", *other)
    assert refused.wait() == 2
    assert part in refused.talk.splitlines()[-1]
    assert "--study" in refused.talk.splitlines()[-1]
    assert refused.notes == []
