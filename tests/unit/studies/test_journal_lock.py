"""The lock of a journal: left behind by who is gone, held by others, and waited for by who is to end."""

import contextlib
import os
import signal
import threading
import time

import pytest

from autorecompute.errors import SetupError
from autorecompute.studies.sharing import journal, parse_storage
from autorecompute.studies.sharing.opening import Patience, open_study
from autorecompute.waiting import OutOfTime, ending_at, interruptible

ELSEWHERE = "/mnt/of-another-host/journal"


@pytest.fixture
def url(tmp_path):
    """Where the study is."""
    return parse_storage(f"journal:{tmp_path / 'journal'}")


@pytest.fixture
def study(url):
    """The study, as one of its workers has it."""
    return open_study(url, "bert")[0]


@pytest.fixture
def lock(url):
    """Where the lock of its journal is, which nobody has yet."""
    return url.journal.with_name("journal.lock")


@pytest.fixture
def tries(monkeypatch):
    """How often it was tried to take a lock."""
    tries, symlink = [], os.symlink
    monkeypatch.setattr(os, "symlink", lambda *names, **more: (tries.append(names), symlink(*names, **more)))
    return tries


@pytest.fixture
def grace(monkeypatch):
    """Sets for how long a lock that nothing happens to is respected, and how long it is waited for in any case."""

    def grace(seconds, prompt_seconds=0.0):
        monkeypatch.setattr(journal, "GRACE_SECONDS", seconds)
        monkeypatch.setattr(journal, "PROMPT_SECONDS", prompt_seconds)

    return grace


@pytest.mark.parametrize("target", ["journal", ELSEWHERE])
def test_a_lock_that_somebody_left_is_broken(study, lock, grace, tries, target):
    """Wherever its maker saw the journal; who waits tries a few times, and not all the time."""
    grace(0.5)
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


def test_a_lock_that_changes_hands_is_respected(study, lock, grace):
    """Others may have it in turns for longer than one of them may."""
    grace(0.6)
    taken = []

    def take_turns():
        for turn in range(6):
            with contextlib.suppress(FileExistsError):
                lock.symlink_to(ELSEWHERE)
                taken.append(turn)
            time.sleep(0.2)
            lock.unlink()

    others = threading.Thread(target=take_turns)
    lock.symlink_to(ELSEWHERE)
    others.start()
    study.set_user_attr("mine", 1)
    others.join()
    assert study.user_attrs == {"mine": 1}


def test_who_is_out_of_time_waits_no_longer(url, study, lock, grace):
    """What is asked while there is time ends with it; what is asked after it ends as with any storage that is away."""
    grace(60)
    lock.symlink_to(ELSEWHERE)
    patiently = Patience(url, lambda _: None)
    with ending_at(time.monotonic() + 0.3), pytest.raises(OutOfTime):
        patiently(lambda: study.set_user_attr("mine", 1))
    with ending_at(0.0), pytest.raises(SetupError, match="another worker holds its lock"):
        patiently(lambda: study.set_user_attr("mine", 1))
    assert lock.is_symlink()


def test_what_is_ready_is_written_even_when_the_time_is_over(url, study, lock, grace):
    """Who lives has the lock for a moment only."""
    grace(60, prompt_seconds=30.0)
    lock.symlink_to(ELSEWHERE)
    threading.Timer(0.2, lock.unlink).start()
    with ending_at(0.0):
        Patience(url, lambda _: None)(lambda: study.set_user_attr("mine", 1))
    assert study.user_attrs == {"mine": 1}


def test_ctrl_c_ends_the_wait_of_the_command_and_of_no_other_thread(study, lock, grace):
    """A beat that wants the lock, too, neither takes the signal for itself nor keeps the command from noticing it."""
    grace(60)
    lock.symlink_to(ELSEWHERE)
    beats = []

    def beat():
        while not beats:
            with contextlib.suppress(OSError):
                study.set_user_attr("beat", 1)
                beats.append(1)
            time.sleep(0.01)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    with pytest.raises(KeyboardInterrupt), interruptible():  # noqa: PT012  (what waits is interrupted)
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.2)
        study.set_user_attr("mine", 1)
    lock.unlink()
    beating.join()
    assert study.user_attrs == {"beat": 1}


def test_a_thread_that_beats_breaks_a_lock_that_somebody_left(study, lock, grace):
    """It does not wait for long at once, and knows the lock when it tries again."""
    grace(0.5)
    lock.symlink_to(ELSEWHERE)
    failures = []

    def beat():
        while True:
            try:
                return study.set_user_attr("beat", 1)
            except TimeoutError as error:
                failures.append(error)
                time.sleep(0.05)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    beating.join(30)
    assert study.user_attrs == {"beat": 1}
    assert failures
