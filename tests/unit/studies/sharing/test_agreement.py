import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

from autorecompute.errors import UsageError
from autorecompute.studies.race_record import RaceRecord
from autorecompute.studies.sharing import PublishedAnswer, SharedStudy
from autorecompute.studies.sharing.journal import LOCK_SUFFIX, open_journal
from stand_ins.sharing import LIMIT


@pytest.mark.parametrize(
    ("changes", "words"), [({"batch": 7}, "batch 7, not "), ({"limit_bytes": 5}, r"limit 0 KiB \(5 bytes\), not ")]
)
def test_another_problem_is_refused(join, changes, words):
    first = join()
    with pytest.raises(UsageError, match=rf"{words}.*--study NAME"):
        join(**changes)
    assert list(first.refresh().running) == [0]


def test_other_sizes_by_another_command_are_refused(join, tuned):
    """By the same command the first batch may have another at each start."""
    short, long = (dataclasses.replace(tuned.sizes, dims={"sequence": length}) for length in (128, 512))
    join(sizes=short)
    join(sizes=long)
    with pytest.raises(UsageError, match="sequence 512, not 128"):
        join(sizes=long, command=("python", "train.py", "--long"))


def test_a_limit_that_nobody_asked_for_is_that_of_the_first(join, open_worker, tuned, with_problem, space):
    join()
    mine = with_problem(limit_bytes=LIMIT - 5)
    assert open_worker().join(mine, space, is_limit_free=True) == tuned.problem


def test_workers_that_begin_together_agree(url, with_problem, space):
    together = threading.Barrier(4, timeout=600)

    def begin(place):
        worker = SharedStudy(url, "bert", lambda _: None)
        together.wait()
        agreed = worker.join(with_problem(limit_bytes=LIMIT + place), space, is_limit_free=True)
        together.wait()
        worker.leave()
        return agreed

    with ThreadPoolExecutor(4) as pool:
        agreed = list(pool.map(begin, range(4)))
    assert len(set(agreed)) == 1


def test_a_lock_that_comes_and_goes_is_a_lock(url):
    """A worker that begins finds it at one moment and not at the next."""
    lock = Path(f"{url.journal}{LOCK_SUFFIX}")
    open_journal(url.journal)
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(lambda: [open_journal(url.journal) for _ in range(500)])
        while not begun.done():
            lock.symlink_to(url.journal)
            lock.unlink()
    begun.result()


def test_a_study_of_somebody_else_is_left_alone(open_worker, tuned):
    worker = open_worker("theirs")
    optuna.load_study(study_name="theirs", storage=worker._storage).ask()
    with pytest.raises(UsageError, match=r"'theirs'.* was not begun by autorecompute"):
        open_worker("theirs").check(tuned, is_limit_free=True)


def test_an_answer_is_for_all(join, make_result):
    first, second = join(), join()
    answer = PublishedAnswer(result=make_result(), race=RaceRecord(ranking=None, standings=()))
    first.publish(answer)
    second.refresh()
    assert second.answer == answer
