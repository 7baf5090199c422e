"""Which change is made in which case, a case from its beginning to its end, and the processes that run many."""

import collections
import contextlib
import gc
import multiprocessing
import os
import random
import re
import sys
import tempfile
import traceback
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from fuzz import checks, commands, sandbox, valid
from fuzz.changes import Field, Place, fields_of, places_of
from fuzz.commands import Arguments

TURNS = (Field, Place, Field, Arguments, Field)
"""Which kind of change one case after the other makes."""

ENCODINGS = (*["utf-8"] * 9, "ascii")
"""What a terminal can show: mostly anything."""

FOLLOWED, CHECKED = 0.6, 0.1
"""Shares of the imported studies that another command reads, and that are checked first."""

CASES_A_PROCESS = 50
"""So many one after the other: a fork costs as much as a case does."""

_FORKS = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong with a command after a change, and what was said of it on standard error."""

    change: str
    command: object
    complaint: str
    said: str = ""

    @property
    def cause(self):
        """What is wrong, and where: the same for those of one cause."""
        places = re.findall(r'/(autorecompute/[^"]+)", line (\d+)', self.said)
        return self.complaint[:120] + (" at {}:{}".format(*places[-1]) if places else "")


class Plan:
    """All changes to a folder of valid studies, each kind in an order of its own that the seed gives."""

    def __init__(self, source, seed):
        self.seed = seed
        self._source = {
            str(path.relative_to(source)): None if path.is_dir() else path.read_bytes()
            for path in sorted(source.rglob("*"))
        }
        with contextlib.chdir(source):
            self._changes = {
                Field: [field for file in _documents() if file.suffix in _STRUCTURED for field in fields_of(file)],
                Place: [place for file in (*_documents(), *_others()) for place in places_of(file)],
                Arguments: [Arguments(base, word) for base in commands.VERBS for word in commands.WORDS],
            }
        draw = random.Random(seed)
        for entries in self._changes.values():
            draw.shuffle(entries)

    @property
    def size(self):
        """How many changes there are."""
        return sum(map(len, self._changes.values()))

    def change_of(self, number):
        """The change of a case: none of its kind comes twice before all of it came."""
        rounds, turn = divmod(number, len(TURNS))
        entries = self._changes[TURNS[turn]]
        return entries[(rounds * TURNS.count(TURNS[turn]) + TURNS[:turn].count(TURNS[turn])) % len(entries)]

    def run(self, number, place):
        """Runs a case in a folder of its own; what was wrong with each of its commands."""
        draw, change = random.Random(f"{self.seed}:{number}"), self.change_of(number)
        encoding = draw.choice(ENCODINGS)
        self._lay_out(change, place)
        with contextlib.chdir(place / sandbox.WORK):
            if isinstance(change, Arguments):
                commands.prepare()
                yield from meet(place, repr(change)[:120], change.command(draw), encoding=encoding)[1]
                return
            done, is_archive = change.change(draw), change.file.startswith(valid.ARCHIVES)
            first = (commands.import_of if is_archive else commands.reader_of)(change.file, draw)
            code, findings = meet(place, done, first, encoding=encoding)
            yield from findings
            share = draw.random()
            if is_archive and code == 0 and share < FOLLOWED:
                following = commands.check_of_import(draw) if share < CHECKED else (commands.follower(draw),)
                for command in following:
                    yield from meet(place, done, command, encoding=encoding)[1]

    def _lay_out(self, change, place):
        """Puts down what the commands may read, and what they may not touch."""
        for name in ("outside/docs", sandbox.WORK, "tmp", "home"):
            (place / name).mkdir(parents=True)
        for name in ("keep.txt", "docs/01.log", "docs/result.json", "docs/output.log"):
            (place / "outside" / name).write_text("keep\n", encoding="utf-8")
        needed = [valid.SCRIPT, f"studies/{valid.UNANSWERED}"]
        if isinstance(change, Arguments):
            needed += [f"studies/{valid.TUNED}", commands.ARCHIVE]
        else:
            is_archive = change.file.startswith(valid.ARCHIVES)
            needed.append(change.file if is_archive else "/".join(change.file.split("/")[:2]))
        for name, content in self._source.items():
            if name.startswith(tuple(needed)):
                file = place / sandbox.WORK / name
                (file if content is None else file.parent).mkdir(parents=True, exist_ok=True)
                if content is not None:
                    file.write_bytes(content)


def meet(place, done, command, **ways):
    """The exit code of a command, and what was wrong with it."""
    before = [checks.snapshot(place / name) for name in (sandbox.WORK, "outside")]
    ended = sandbox.run(place, command, **ways)
    after = [checks.snapshot(place / name) for name in (sandbox.WORK, "outside")]
    said = ended.crash + ended.err.decode(errors="backslashreplace")
    return ended.code, [
        Finding(done, command, found, said) for found in checks.complaints(command, ended, before, after)
    ]


_STRUCTURED = {".json", ".jsonl", ".db"}


def _documents():
    """The archives, and the files of each kind, once: the first study has most of them, the others what it has not."""
    yield from sorted(Path(valid.ARCHIVES).iterdir())
    seen = set()
    for study in (valid.TUNED, valid.BATCHES, valid.SHARED, valid.UNANSWERED):
        for file in sorted(Path("studies", study).rglob("*")):
            kind = tuple("0000" if part.isdigit() else part for part in file.parts[2:])
            if kind not in seen or (study == valid.BATCHES and kind == ("result.json",)):
                seen.add(kind)
                yield file


def _others():
    yield from (Path("studies", study) for study in (valid.TUNED, valid.SHARED))
    yield from (Path("studies", valid.TUNED, f"study.db{ending}") for ending in ("-journal", "-wal", "-shm"))


def run_cases(plan, place, numbers, jobs):
    """Every case that ended, with what was wrong in it; they run in processes forked from this one.

    A case that ends its process counts as one that is wrong, and the next one goes on in another process.
    """
    gc.collect()
    gc.freeze()
    starts = range(0, len(numbers), CASES_A_PROCESS)
    waiting = collections.deque(list(numbers[start : start + CASES_A_PROCESS]) for start in starts)
    running = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            worker = _Worker(plan, place, waiting.popleft())
            running[worker.messages] = worker
        for messages in wait(list(running)):
            try:
                number, findings = messages.recv()
            except EOFError:
                worker = running.pop(messages)
                yield from worker.last_words(plan)
                if worker.left:
                    waiting.appendleft(worker.left)
            else:
                running[messages].left.remove(number)
                yield number, findings


class _Worker:
    """A process with some cases: those that are left, and where each comes that has ended."""

    def __init__(self, plan, place, numbers):
        self.left = numbers
        self.messages, sending = _FORKS.Pipe(duplex=False)
        self._errors = tempfile.TemporaryFile(dir=place)  # noqa: SIM115  (open as long as the process)
        self._process = _FORKS.Process(target=self._work, args=(plan, place, sending))
        self._process.start()
        sending.close()

    def last_words(self, plan):
        """The case that the process died of, if one did that."""
        self._process.join()
        self.messages.close()
        with self._errors:
            self._errors.seek(0)
            said = self._errors.read().decode(errors="replace")
        if self._process.exitcode and self.left:
            number = self.left.pop(0)
            complaint = f"ended its process with {self._process.exitcode}"
            yield number, [Finding(repr(plan.change_of(number))[:120], None, complaint, said[:4000])]

    def _work(self, plan, place, sending):
        os.dup2(self._errors.fileno(), 2)
        sys.__stderr__ = sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        sandbox.limit_memory()
        for number in self.left:
            with tempfile.TemporaryDirectory(prefix=f"{number}-", dir=place) as folder:
                try:
                    findings = list(plan.run(number, Path(folder)))
                except Exception as error:  # noqa: BLE001  (a fault of the tests is told like any other)
                    broken = f"broke the test: {error}"
                    findings = [Finding(repr(plan.change_of(number))[:120], None, broken, traceback.format_exc())]
            sending.send((number, findings))
