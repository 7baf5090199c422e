"""Faults in the middle of a shared study: whoever dies and whatever goes away, the others come to an answer."""

import threading
import time
from pathlib import Path

from autorecompute.studies.sharing import pulse
from workers.processes import CONFIRMS, MEASURED, Worker, assert_nothing_is_lost_or_doubled, essence
from workers.server import url_of

HURRIED = ("--hurry", 4)
"""The dead are known as such four times as soon."""

LOST_SECONDS = 20
FEW = ("--max-trials", 10)
LONG = (*FEW, "--trial-seconds", 1)


def assert_they_agree(storage, workers):
    """All tell the same answer, to which every trial counts once."""
    answers = [essence(worker.answer()) for worker in workers]
    assert all(answer == answers[0] for answer in answers)
    assert_nothing_is_lost_or_doubled(storage, workers)


def test_the_trial_of_a_killed_worker_is_measured_by_another(storages, tmp_path):
    """A worker that is killed in the middle of a trial has it given back; nothing is lost that it measured before."""
    scenes = []
    for name, storage in storages.items():
        slow = Worker(storage, tmp_path / f"{name}-killed", *FEW, *HURRIED, "--trial-seconds", 3)
        slow.await_note("begins", times=2)
        other = Worker(storage, tmp_path / f"{name}-other", *FEW, *HURRIED, "--trial-seconds", 0.5)
        slow.kill()
        scenes.append((storage, slow, other))
    for storage, slow, other in scenes:
        (unfinished,) = set(slow.configs("begins")) - set(slow.configs(MEASURED))
        assert other.answer()["best"]["confirmed"]
        assert unfinished in other.configs(MEASURED)
        assert "went away" in other.talk
        assert_nothing_is_lost_or_doubled(storage, [slow, other], interrupted=1)


def test_another_confirms_when_the_one_who_did_is_killed(storages, tmp_path):
    """The last one's death costs its work and not the answer."""
    scenes = []
    for name, storage in storages.items():
        options = (*LONG, *HURRIED)
        pair = [Worker(storage, tmp_path / f"{name}-{number}", *options) for number in range(2)]
        scenes.append((storage, pair))
    for _, pair in scenes:
        pair[0].await_that(lambda pair=pair: any(worker.configs(CONFIRMS) for worker in pair))
        pair.sort(key=lambda worker: bool(worker.configs(CONFIRMS)))
        pair[1].kill()
    for storage, pair in scenes:
        survivor = pair[0]
        assert survivor.answer()["best"]["confirmed"]
        assert survivor.configs(CONFIRMS)
        assert_nothing_is_lost_or_doubled(storage, pair)


def test_a_restart_of_the_server_costs_nothing(server, database, tmp_path):
    """The server is gone at once, in the middle of trials, and comes back: no worker ends, and no trial is lost."""
    storage = url_of(database, server.port)
    workers = [Worker(storage, tmp_path / f"worker{number}", *FEW) for number in range(2)]
    for worker in workers:
        worker.await_note(MEASURED)
    server.stop()
    time.sleep(3)
    server.start()
    assert_they_agree(storage, workers)
    assert any("Trying again" in worker.talk for worker in workers)
    assert all(("Trying again" in worker.talk) == ("is back" in worker.talk) for worker in workers)


def test_20_seconds_without_the_storage_cost_nothing(journal, server, make_database, make_proxy, tmp_path):
    """Connections are refused or silent, to both workers or to one, or a journal is locked: all go on afterwards."""
    assert pulse.DEAD_SECONDS > LOST_SECONDS
    scenes = []
    for fault in ("cut", "hold", "cut of one"):
        proxy, database = make_proxy(), make_database()
        direct, storage = url_of(database, server.port), url_of(database, proxy.port)
        pair = (storage, direct if fault == "cut of one" else storage)
        workers = [Worker(url, tmp_path / f"{fault}{number}", *LONG) for number, url in enumerate(pair)]
        workers[0].await_note(MEASURED)
        proxy.hold() if fault == "hold" else proxy.cut()
        threading.Timer(LOST_SECONDS, proxy.release if fault == "hold" else proxy.mend).start()
        scenes.append((direct, workers))
    workers = [Worker(journal, tmp_path / f"locked{number}", *LONG) for number in range(2)]
    workers[0].await_note(MEASURED)
    lock = Path(f"{journal.removeprefix('journal:')}.lock")
    workers[0].await_that(lambda: _takes(lock))
    for storage, pair in [*scenes, (journal, workers)]:
        assert_they_agree(storage, pair)
    cut, _, cut_of_one = (pair for _, pair in scenes)
    assert all("Trying again" in worker.talk for worker in (*cut, cut_of_one[0]))
    assert not lock.is_symlink()


def _takes(lock):
    """Leaves the lock of a worker that was killed while it wrote into a journal; not where another has it just now."""
    try:
        lock.symlink_to(lock.with_suffix(""))
    except FileExistsError:
        return False
    return True


def test_a_server_that_stays_away_ends_the_work_with_a_sentence(database, proxy, tmp_path):
    """After its patience a worker ends as for a broken installation, says how to go on, and another session does."""
    storage = url_of(database, proxy.port)
    worker = Worker(storage, tmp_path / "worker", *FEW, *HURRIED)
    worker.await_note(MEASURED, times=2)
    proxy.cut()
    assert worker.wait() == 3
    assert "run the same command again" in worker.talk.splitlines()[-1]
    before = worker.configs(MEASURED)
    proxy.mend()
    again = Worker(storage, tmp_path / "worker", *FEW, *HURRIED)
    assert again.answer()["best"]["confirmed"]
    # What could not be written down at the end is all that is measured again.
    measured_now = again.configs(MEASURED)[len(before) :]
    assert len(set(before) & set(measured_now)) <= 1
    assert len(set(measured_now)) == len(measured_now)
