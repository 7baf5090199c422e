from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import read_trials
from browser.dashboard import dashboard, detail_of
from workers.processes import BEGINS, CHECKED, STUDY, Worker, assert_nothing_is_lost_or_doubled, essence, measured

TRIALS = 14
LIMITED = ("--max-trials", TRIALS)


def test_workers_share_the_trials_and_agree_and_a_later_one_has_the_answer_at_once(storage, tmp_path):
    """No config is measured twice, all trials together are as many as asked for, and one worker confirms for all."""
    first = Worker(storage, tmp_path / "first", *LIMITED, "--hold", "begins:2")
    first.await_note(BEGINS, times=2)
    # The other one would have waited for the first trial.
    second = Worker(storage, tmp_path / "second", *LIMITED, "--hold", "begins:1")
    second.await_note(BEGINS)
    workers = [first, second]
    for worker in workers:
        worker.tell("go")
    answers = [worker.answer() for worker in workers]
    assert_nothing_is_lost_or_doubled(storage, workers)
    assert len(measured(workers)) == answers[0]["trials"] == TRIALS
    assert sum(bool(worker.configs(CHECKED)) for worker in workers) == 1
    late = Worker(storage, tmp_path / "late", *LIMITED)
    assert all(essence(answer) == essence(answers[0]) for answer in [*answers, late.answer()])
    assert late.notes == []
    assert answers[0]["best"]["confirmed"]
    assert_folders_tell_the_study(workers, answers)
    assert_dashboard_shows(storage, answers[0])


def assert_folders_tell_the_study(workers, answers):
    folders = [StudyFolder(STUDY, worker.folder / "studies") for worker in workers]
    trials = [read_trials(folder.database, folder.name_in_database) for folder in folders]
    assert all(told == trials[0] for told in trials)
    assert len(trials[0]) == TRIALS
    for answer, folder in zip(answers, folders, strict=True):
        (file,) = (value for name, value in answer["best"]["env"].items() if name.endswith("CONFIG"))
        assert file == str(folder.path / "best" / "plans.json")
        assert (folder.path / "best" / "plans.json").exists()


def assert_dashboard_shows(storage, answer):
    """Every trial that was measured has its constraint and peak; one that a worker gave up has neither."""
    with dashboard(storage.replace("postgresql://", "postgresql+psycopg://")) as page:
        shown = detail_of(page)
    assert shown["objective_names"] == ["samples/s"]
    kept = [trial for trial in shown["trials"] if trial["constraints"]]
    told = [{item["key"]: item["value"] for item in trial["user_attrs"]} for trial in kept]
    assert [trial["constraints"][0] <= 0 for trial in kept] == [trial["outcome"] == "ok" for trial in told]
    assert len(kept) == answer["trials"]
    assert all(float(trial["peak_gib"]) > 0 for trial in told)
