from pathlib import Path

import pytest

from workers.processes import BEGINS, CONFIRMS, MEASURED, Worker, assert_nothing_is_lost_or_doubled, essence
from workers.server import url_of

FEW = ("--max-trials", 10)
KINDS = ["journal", "postgresql"]


def begin_two(folder, *storages):
    """Two workers in the middle of a trial, in which they stay until they are told."""
    workers = [
        Worker(url, folder / f"worker{number}", *FEW, "--hold", "begins:2") for number, url in enumerate(storages)
    ]
    for worker in workers:
        worker.await_note(BEGINS, times=2)
    return workers


def go_on(workers):
    for worker in workers:
        worker.tell("go")


def assert_they_agree(storage, workers):
    answers = [essence(worker.answer()) for worker in workers]
    assert all(answer == answers[0] for answer in answers)
    assert_nothing_is_lost_or_doubled(storage, workers)


@pytest.mark.parametrize("kind", KINDS)
def test_the_trial_of_a_killed_worker_is_measured_by_another(storages, tmp_path, kind):
    killed = Worker(storages[kind], tmp_path / "killed", *FEW, "--hold", "begins:2")
    killed.await_note(BEGINS, times=2)
    killed.kill()
    other = Worker(storages[kind], tmp_path / "other", *FEW)
    other.tell("hurry")
    assert other.answer()["best"]["confirmed"]
    (unfinished,) = set(killed.configs(BEGINS)) - set(killed.configs(MEASURED))
    assert unfinished in other.configs(MEASURED)
    assert "went away" in other.talk
    assert_nothing_is_lost_or_doubled(storages[kind], [killed, other], interrupted=1)


@pytest.mark.parametrize("kind", KINDS)
def test_another_confirms_when_the_one_who_did_is_killed(storages, tmp_path, kind):
    pair = [Worker(storages[kind], tmp_path / f"{number}", *FEW, "--hold", "confirms:1") for number in range(2)]
    pair[0].await_that(lambda: any(worker.configs(CONFIRMS) for worker in pair))
    survivor, confirming = sorted(pair, key=lambda worker: bool(worker.configs(CONFIRMS)))
    confirming.kill()
    survivor.tell("go")
    survivor.tell("hurry")
    assert survivor.answer()["best"]["confirmed"]
    assert survivor.configs(CONFIRMS)
    assert_nothing_is_lost_or_doubled(storages[kind], pair)


def test_a_restart_of_the_server_in_the_middle_of_trials_costs_nothing(server, database, tmp_path):
    storage = url_of(database, server.port)
    workers = begin_two(tmp_path, storage, storage)
    server.stop()
    go_on(workers)
    for worker in workers:
        worker.await_that(lambda worker=worker: "Trying again" in worker.talk)
    server.start()
    assert_they_agree(storage, workers)
    assert all("is back" in worker.talk for worker in workers)


def test_a_connection_that_one_worker_loses_for_a_while_costs_nothing(server, database, proxy, tmp_path):
    direct = url_of(database, server.port)
    workers = begin_two(tmp_path, url_of(database, proxy.port), direct)
    proxy.cut()
    go_on(workers)
    workers[0].await_that(lambda: "Trying again" in workers[0].talk)
    proxy.mend()
    assert_they_agree(direct, workers)


def test_a_server_that_says_nothing_for_a_while_costs_nothing(server, database, proxy, tmp_path):
    storage = url_of(database, proxy.port)
    workers = begin_two(tmp_path, storage, storage)
    proxy.hold()
    go_on(workers)
    for worker in workers:
        worker.await_note(MEASURED, times=2)
    workers[0].await_that(lambda: proxy.held)
    proxy.release()
    assert_they_agree(url_of(database, server.port), workers)


def test_a_journal_that_a_killed_worker_has_locked_goes_on(journal, tmp_path):
    workers = begin_two(tmp_path, journal, journal)
    lock = Path(f"{journal.removeprefix('journal:')}.lock")
    workers[0].await_that(lambda: _takes(lock))
    go_on(workers)
    assert_they_agree(journal, workers)
    assert not lock.is_symlink()


def _takes(lock):
    """Leaves the lock of a worker that was killed while it wrote; not where another has it just now."""
    try:
        lock.symlink_to(lock.with_suffix(""))
    except FileExistsError:
        return False
    return True


def test_a_server_that_stays_away_ends_the_work_with_a_sentence_and_the_next_session_goes_on(database, proxy, tmp_path):
    storage = url_of(database, proxy.port)
    worker = Worker(storage, tmp_path / "worker", *FEW, "--hold", "begins:3")
    worker.await_note(BEGINS, times=3)
    worker.tell("hurry")
    worker.await_that(lambda: not (worker.folder / "hurry").exists())
    proxy.cut()
    worker.tell("go")
    assert worker.wait() == 3
    assert "run the same command again" in worker.talk.splitlines()[-1]
    before = worker.configs(MEASURED)
    proxy.mend()
    again = Worker(storage, tmp_path / "worker", *FEW)
    again.tell("hurry")
    assert again.answer()["best"]["confirmed"]
    # What could not be written down at the end is all that is measured again.
    measured_now = again.configs(MEASURED)[len(before) :]
    assert len(set(before) & set(measured_now)) <= 1
    assert len(set(measured_now)) == len(measured_now)
