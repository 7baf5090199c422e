from workers.processes import BEGINS, MEASURED, Worker, assert_nothing_is_lost_or_doubled

FEW = ("--max-trials", 10)
SOON = ("--grace", 3)


def test_the_trial_of_a_killed_worker_is_measured_by_another(storage, tmp_path):
    killed = Worker(storage, tmp_path / "killed", *FEW, "--hold", "begins:2")
    killed.await_note(BEGINS, times=2)
    killed.kill()
    other = Worker(storage, tmp_path / "other", *FEW, *SOON)
    assert other.answer()["best"]["confirmed"]
    (unfinished,) = set(killed.configs(BEGINS)) - set(killed.configs(MEASURED))
    assert unfinished in other.configs(MEASURED)
    assert_nothing_is_lost_or_doubled(storage, [killed, other], interrupted=1)


def test_a_server_that_is_away_between_two_requests_is_not_noticed(server, database_url, tmp_path):
    worker = Worker(database_url, tmp_path / "worker", *FEW, "--hold", "begins:2")
    worker.await_note(BEGINS, times=2)
    server.stop()
    server.start()
    worker.tell("go")
    assert worker.answer()["best"]["confirmed"]
    assert_nothing_is_lost_or_doubled(database_url, [worker])


def test_a_server_that_is_lost_ends_the_work_with_a_sentence_and_the_next_session_goes_on(
    server, database_url, tmp_path
):
    worker = Worker(database_url, tmp_path / "worker", *FEW, "--hold", "begins:3")
    worker.await_note(BEGINS, times=3)
    server.stop()
    worker.tell("go")
    assert worker.wait() == 3
    assert "Traceback" not in worker.talk
    assert "run the same command again" in worker.talk.splitlines()[-1]
    before = worker.configs(MEASURED)
    server.start()
    again = Worker(database_url, tmp_path / "worker", *FEW, *SOON)
    assert again.answer()["best"]["confirmed"]
    # What could not be written down at the end is all that is measured again.
    measured_now = again.configs(MEASURED)[len(before) :]
    assert len(set(before) & set(measured_now)) <= 1
    assert len(set(measured_now)) == len(measured_now)
