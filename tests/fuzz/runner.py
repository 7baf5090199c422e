"""Runs many cases in processes forked from this one, which has everything imported."""

from __future__ import annotations

import collections
import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
from multiprocessing.connection import wait
from pathlib import Path

from fuzz.plan import Finding
from fuzz.sandbox import limit_memory

CASES_A_PROCESS = 50
"""So many one after the other: a fork costs as much as a case does."""

_FORKS = multiprocessing.get_context("fork")


def run_cases(plan, place, numbers, jobs):
    """Every case that ended, with what was wrong in it.

    A case that ends its process counts as one that is wrong, and the next one goes on in another process.

    Args:
        plan: The changes.
        place: A folder for the cases.
        numbers: Which cases.
        jobs: Processes at a time.
    """
    gc.collect()
    gc.freeze()
    waiting = collections.deque(
        numbers[start : start + CASES_A_PROCESS] for start in range(0, len(numbers), CASES_A_PROCESS)
    )
    running = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            worker = Worker(plan, place, waiting.popleft())
            running[worker.messages] = worker
        for messages in wait(list(running)):
            try:
                number, findings = messages.recv()
            except EOFError:
                worker = running.pop(messages)
                yield from worker.last_words()
                if worker.left:
                    waiting.appendleft(worker.left)
            else:
                running[messages].left.remove(number)
                yield number, findings


class Worker:
    """A process with some cases.

    Args:
        plan: The changes.
        place: A folder for the cases.
        numbers: The cases, in order.

    Attributes:
        left: Those that have not ended.
        messages: Where each comes that has.
    """

    def __init__(self, plan, place, numbers):
        self.left, self._plan = list(numbers), plan
        self.messages, sending = _FORKS.Pipe(duplex=False)
        self._errors = tempfile.TemporaryFile(dir=place)  # noqa: SIM115  (open as long as the process)
        self._process = _FORKS.Process(target=self._work, args=(sending, place))
        self._process.start()
        sending.close()

    def last_words(self):
        """The case that the process died of, if one did that."""
        self._process.join()
        self.messages.close()
        with self._errors:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
        if self._process.exitcode and self.left:
            number = self.left.pop(0)
            complaint = f"ended its process with {self._process.exitcode}"
            yield number, [Finding(str(self._plan.change_of(number)), (), complaint, said[-4000:])]

    def _work(self, sending, place):
        os.dup2(self._errors.fileno(), 2)
        sys.__stderr__ = sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        limit_memory()
        for number in self.left:
            sending.send((number, _run(self._plan, place, number)))


def _run(plan, place, number):
    with tempfile.TemporaryDirectory(prefix=f"{number}-", dir=place) as folder:
        try:
            return plan.run(number, Path(folder))
        except Exception as error:  # noqa: BLE001  (a fault of the tests is told like any other)
            return [Finding(str(plan.change_of(number)), (), f"broke the test: {error}", traceback.format_exc())]
