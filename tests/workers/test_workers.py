"""Several workers on one study: they share the trials, and all tell the same answer."""

import pytest

from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import read_trials
from browser.dashboard import dashboard, detail_of
from workers.processes import CHECKED, MEASURED, STUDY, Worker, assert_nothing_is_lost_or_doubled, essence, measured

TRIALS = 14
LIMITED = ("--max-trials", TRIALS)
JOURNAL, POSTGRESQL = "journal", "postgresql"


@pytest.mark.parametrize(
    ("kind", "count"), [(JOURNAL, 2), (POSTGRESQL, 2), pytest.param(POSTGRESQL, 8, marks=pytest.mark.thorough)]
)
def test_workers_share_the_trials_and_agree(storages, tmp_path, kind, count):
    """No config is measured twice, all trials together are as many as asked for, and one worker confirms for all."""
    workers = [Worker(storages[kind], tmp_path / f"worker{number}", *LIMITED) for number in range(count)]
    answers = [worker.answer() for worker in workers]
    assert_nothing_is_lost_or_doubled(storages[kind], workers)
    assert len(measured(workers)) == answers[0]["trials"] == TRIALS
    assert sum(bool(worker.configs(MEASURED)) for worker in workers) > 1
    assert sum(bool(worker.configs(CHECKED)) for worker in workers) == 1
    assert all(essence(answer) == essence(answers[0]) for answer in answers)
    assert answers[0]["best"]["confirmed"]
    assert_folders_tell_the_study(workers, answers)


def assert_folders_tell_the_study(workers, answers):
    """Each worker's own folder has all trials, by the same numbers, and the file that the emitted variable names."""
    folders = [StudyFolder(STUDY, worker.folder / "studies") for worker in workers]
    trials = [read_trials(folder.database, folder.name_in_database) for folder in folders]
    assert all(told == trials[0] for told in trials)
    assert len(trials[0]) == TRIALS
    for answer, folder in zip(answers, folders, strict=True):
        (file,) = (value for name, value in answer["best"]["env"].items() if name.endswith("CONFIG"))
        assert file == str(folder.path / "best" / "plans.json")
        assert (folder.path / "best" / "plans.json").exists()


@pytest.mark.parametrize("kind", [JOURNAL, POSTGRESQL])
def test_a_later_worker_has_the_answer_at_once(storages, tmp_path, kind):
    """Who comes when all is done measures nothing, and tells the same."""
    answer = Worker(storages[kind], tmp_path / "first", *LIMITED).answer()
    late = Worker(storages[kind], tmp_path / "late", *LIMITED)
    assert essence(late.answer()) == essence(answer)
    assert late.notes == []
    assert_dashboard_shows(storages[kind], answer)


def assert_dashboard_shows(storage, answer):
    """The storage can be opened while it is there for workers, and every trial has its constraint and peak."""
    address = storage.removeprefix("journal:").replace("postgresql://", "postgresql+psycopg://")
    with dashboard(address) as page:
        shown = detail_of(page)
    assert shown["objective_names"] == ["samples/s"]
    trials = [{item["key"]: item["value"] for item in trial["user_attrs"]} for trial in shown["trials"]]
    fitting = [trial["constraints"][0] <= 0 for trial in shown["trials"]]
    assert fitting == [trial["outcome"] == "ok" for trial in trials]
    assert len(fitting) == answer["trials"]
    assert all(float(trial["peak_gib"]) > 0 for trial in trials)


@pytest.mark.parametrize("kind", [JOURNAL, POSTGRESQL])
def test_another_problem_is_refused(storages, tmp_path, kind):
    """A device or a limit that differs is another problem: wrong usage, and a sentence that names the part."""
    assert Worker(storages[kind], tmp_path / "first", "--max-trials", 1).wait() in {0, 4}
    others = {"device": ("--device", " B"), "limit": ("--limit-offset", 1 << 20)}
    refused = {part: Worker(storages[kind], tmp_path / part, *option) for part, option in others.items()}
    for part, worker in refused.items():
        assert worker.wait() == 2
        last = worker.talk.splitlines()[-1]
        assert part in last
        assert "--study" in last
        assert worker.notes == []
