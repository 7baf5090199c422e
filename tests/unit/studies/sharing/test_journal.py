import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from autorecompute.errors import SetupError
from autorecompute.studies.sharing.journal import GRACE_SECONDS
from autorecompute.studies.sharing.opening import Patience, open_study
from autorecompute.waiting import OutOfTime, ending_at, interruptible

ELSEWHERE = "/mnt/of-another-host/journal"


@pytest.fixture
def open_one(url):
    return lambda: open_study(url, "bert")[0]


@pytest.fixture
def study(open_one):
    return open_one()


def test_a_disk_that_was_full_costs_what_could_not_be_written(url, open_one, no_file_longer_than):
    first, second = open_one(), open_one()
    first.set_user_attr("before", 1)
    size = url.journal.stat().st_size
    with no_file_longer_than(size + 20), pytest.raises(OSError, match="File too large"):
        first.set_user_attr("lost", 1)
    assert url.journal.stat().st_size > size
    assert second.user_attrs == {"before": 1}
    second.set_user_attr("after", 1)
    first.set_user_attr("lost", 2)
    expected = {"before": 1, "after": 1, "lost": 2}
    assert first.user_attrs == second.user_attrs == open_one().user_attrs == expected


@pytest.fixture
def lock(url):
    return url.journal.with_name("journal.lock")


@pytest.fixture
def tries(monkeypatch):
    """How often it was tried to take a lock."""
    tries, symlink = [], os.symlink
    monkeypatch.setattr(os, "symlink", lambda *names, **more: (tries.append(names), symlink(*names, **more)))
    return tries


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("target", ["journal", ELSEWHERE])
def test_a_lock_that_somebody_left_is_broken(study, lock, tries, target):
    """Who waits tries a few times, and not all the time."""
    lock.symlink_to(target)
    study.set_user_attr("mine", 1)
    assert study.user_attrs == {"mine": 1}
    assert not lock.is_symlink()
    assert len(tries) < 50


def test_a_lock_leads_to_the_journal_on_every_host(study, lock, tries):
    """By its name alone: other tools look through the link at the journal."""
    study.set_user_attr("mine", 1)
    assert {str(names[0]) for names in tries} == {"journal"}
    assert not lock.is_symlink()


def test_a_lock_that_changes_hands_is_respected(study, lock, clock):
    began, turns = clock.now, 5

    def give(turn):
        lock.unlink(missing_ok=True)
        if turn < turns:
            lock.symlink_to(ELSEWHERE)
            os.utime(lock, ns=(turn, turn), follow_symlinks=False)
            clock.after(0.7 * GRACE_SECONDS, lambda: give(turn + 1))

    give(0)
    study.set_user_attr("mine", 1)
    assert clock.now >= began + turns * 0.7 * GRACE_SECONDS
    assert study.user_attrs == {"mine": 1}


@pytest.mark.usefixtures("clock")
def test_a_lock_that_goes_before_it_is_looked_at_is_taken(study, lock, monkeypatch):
    lock.symlink_to(ELSEWHERE)
    symlink = os.symlink

    def come_too_early(*_):
        monkeypatch.setattr(os, "symlink", symlink)
        lock.unlink()
        raise FileExistsError

    monkeypatch.setattr(os, "symlink", come_too_early)
    study.set_user_attr("mine", 1)
    assert study.user_attrs == {"mine": 1}


def test_who_is_out_of_time_waits_no_longer(url, study, lock, clock):
    """What is asked after it ends as with any storage that is away."""
    lock.symlink_to(ELSEWHERE)
    patiently, deadline = Patience(url, lambda _: None), clock.now + 10
    with ending_at(deadline), pytest.raises(OutOfTime):
        patiently(lambda: study.set_user_attr("mine", 1))
    assert clock.now == deadline
    with ending_at(0.0), pytest.raises(SetupError, match="another worker holds its lock"):
        patiently(lambda: study.set_user_attr("mine", 1))
    assert lock.is_symlink()


def test_what_is_ready_is_written_even_when_the_time_is_over(url, study, lock, clock):
    """Who lives has the lock for a moment only."""
    lock.symlink_to(ELSEWHERE)
    clock.after(0.2, lock.unlink)
    with ending_at(0.0):
        Patience(url, lambda _: None)(lambda: study.set_user_attr("mine", 1))
    assert study.user_attrs == {"mine": 1}


@pytest.mark.usefixtures("clock")
def test_ctrl_c_ends_the_wait_of_the_command_and_of_no_other_thread(study, lock):
    lock.symlink_to(ELSEWHERE)
    with ThreadPoolExecutor(1) as pool, pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012
        signal.raise_signal(signal.SIGINT)
        assert isinstance(pool.submit(study.set_user_attr, "beat", 1).exception(), TimeoutError)
        study.set_user_attr("mine", 1)
    assert lock.is_symlink()


def test_a_thread_that_beats_breaks_a_lock_that_somebody_left(study, lock, clock):
    """It does not wait for long at once, and knows the lock when it tries again."""
    lock.symlink_to(ELSEWHERE)

    def beat():
        failures = 0
        while True:
            try:
                study.set_user_attr("beat", 1)
            except TimeoutError:
                failures += 1
                clock.sleep(5.0)
            else:
                return failures

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(beat).result() > 1
    assert study.user_attrs == {"beat": 1}
