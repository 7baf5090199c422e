from autorecompute.plans import Config
from workers.processes import Worker, assert_nothing_is_lost_or_doubled

FEW = ("--max-trials", "10")
SOON = {"FAKE_GRACE": "3"}


def test_the_trial_of_a_killed_worker_is_measured_by_another(storage, tmp_path):
    killed = Worker(storage, tmp_path / "killed", *FEW, FAKE_FAULT="hang@1")
    killed.await_trial(1)
    killed.kill()
    other = Worker(storage, tmp_path / "other", *FEW, **SOON)
    assert other.answer["best"]["confirmed"]
    lost = assert_nothing_is_lost_or_doubled(storage, [*killed.configs, *other.configs], interrupted=1)
    assert lost < {Config.parse(config).hash for config in other.configs}


def test_a_server_that_is_away_between_two_requests_is_not_noticed(server, database_url, tmp_path):
    worker = Worker(database_url, tmp_path / "worker", *FEW, FAKE_FAULT="hang@1")
    worker.await_trial(1)
    server.stop()
    server.start()
    worker.go_on()
    assert worker.answer["best"]["confirmed"]
    assert_nothing_is_lost_or_doubled(database_url, worker.configs)


def test_a_server_that_is_lost_ends_the_work_with_a_sentence_and_the_next_session_goes_on(
    server, database_url, tmp_path
):
    worker = Worker(database_url, tmp_path / "worker", *FEW, FAKE_FAULT="hang@2")
    worker.await_trial(2)
    server.stop()
    worker.go_on()
    assert worker.finished.code == 3
    assert "Traceback" not in worker.finished.stderr
    assert "run the same command again" in worker.finished.stderr.splitlines()[-1]
    before = worker.configs
    server.start()
    again = Worker(database_url, tmp_path / "worker", *FEW, **SOON)
    assert again.answer["best"]["confirmed"]
    # What could not be written down at the end is all that is measured again.
    measured_now = again.configs[len(before) :]
    assert len(set(before) & set(measured_now)) <= 1
    assert len(set(measured_now)) == len(measured_now)
