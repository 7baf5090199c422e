from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import read_trials
from browser.dashboard import dashboard, detail_of
from workers.processes import STUDY, Worker, assert_nothing_is_lost_or_doubled, essence

TRIALS = 14
LIMITED = ("--max-trials", str(TRIALS))


def test_workers_share_the_trials_and_agree_and_a_later_one_has_the_answer_at_once(storage, tmp_path):
    """No config is measured twice, all trials together are as many as asked for, and one worker confirms for all."""
    first = Worker(storage, tmp_path / "first", *LIMITED, FAKE_FAULT="hang@1")
    first.await_trial(1)
    # The other one would have waited for the first trial.
    second = Worker(storage, tmp_path / "second", *LIMITED, FAKE_FAULT="hang@0")
    second.await_trial(0)
    workers = [first, second]
    for worker in workers:
        worker.go_on()
    answers = [worker.answer for worker in workers]
    configs = [config for worker in workers for config in worker.configs]
    assert_nothing_is_lost_or_doubled(storage, configs)
    assert len(configs) == answers[0]["trials"] == TRIALS
    assert sum("confirming in a fresh process" in worker.finished.stderr for worker in workers) == 1
    late = Worker(storage, tmp_path / "late", *LIMITED)
    assert all(essence(answer) == essence(answers[0]) for answer in [*answers, late.answer])
    assert late.configs == late.finished.trial_lines == []
    assert answers[0]["best"]["confirmed"]
    assert_folders_tell_the_study([*workers, late], [*answers, late.answer])
    assert_dashboard_shows(storage, answers[0])


def assert_folders_tell_the_study(workers, answers):
    folders = [StudyFolder(STUDY, worker.path / "studies") for worker in workers]
    trials = [read_trials(folder.database, folder.name_in_database) for folder in folders]
    assert all(told == trials[0] for told in trials)
    assert len(trials[0]) == TRIALS
    for answer, folder in zip(answers, folders, strict=True):
        (file,) = answer["best"]["env"].values()
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
