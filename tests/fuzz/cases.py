import contextlib
import gc
import multiprocessing
import os
import random
import re
import sys
import tempfile
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fuzz import checks, commands, sandbox, valid
from fuzz.changes import Field, Place, fields_of, places_of
from fuzz.commands import Arguments

TURNS = (Field, Place, Field, Arguments, Field)
"""Which kind of change one case after the other makes."""

ENCODINGS = (*["utf-8"] * 9, "ascii")  # what a terminal can show: mostly anything

FOLLOWED, CHECKED = 0.6, 0.1  # shares of the imported studies that another command reads, and that are checked first

CASES_A_PROCESS = 50  # a fork costs as much as a case does

_FORKS = multiprocessing.get_context("fork")


@dataclass(frozen=True, slots=True)
class Finding:
    change: str
    command: object
    complaint: str
    said: str = ""

    @property
    def cause(self):
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
        return sum(map(len, self._changes.values()))

    def change_of(self, number):
        """The change of a case: none of its kind comes twice before all of it came."""
        rounds, turn = divmod(number, len(TURNS))
        entries = self._changes[TURNS[turn]]
        return entries[(rounds * TURNS.count(TURNS[turn]) + TURNS[:turn].count(TURNS[turn])) % len(entries)]

    def run(self, number, place):
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
    before = [checks.snapshot(place / name) for name in (sandbox.WORK, "outside")]
    ended = sandbox.run(place, command, **ways)
    after = [checks.snapshot(place / name) for name in (sandbox.WORK, "outside")]
    said = ended.crash + ended.err.decode(errors="backslashreplace")
    return ended.code, [
        Finding(done, command, found, said) for found in checks.complaints(command, ended, before, after)
    ]


_STRUCTURED = {".json", ".jsonl", ".db"}


def _documents():
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
    """Every case, with what was wrong in it; a case that ends its process counts as one that is wrong."""
    gc.collect()
    gc.freeze()
    chunks = [numbers[start : start + CASES_A_PROCESS] for start in range(0, len(numbers), CASES_A_PROCESS)]
    # What a forked process is begun with need not be pickled.
    with ProcessPoolExecutor(jobs, _FORKS, initializer=_begin, initargs=(plan, place)) as pool:
        for found in pool.map(_run_chunk, chunks):
            yield from found


def _begin(plan, place):
    _BEGUN.update(plan=plan, place=place)


_BEGUN = {}


def _run_chunk(numbers):
    """Runs cases in a process forked from this one, or in several where some end theirs."""
    found, left = [], list(numbers)
    while left:
        with tempfile.TemporaryFile(dir=_BEGUN["place"]) as errors:
            messages, sending = _FORKS.Pipe(duplex=False)
            process = _FORKS.Process(target=_work, args=(left, errors, sending))
            process.start()
            sending.close()
            with messages, contextlib.suppress(EOFError):
                while True:
                    found.append(messages.recv())
            process.join()
            left = numbers[len(found) :]
            if left:
                errors.seek(0)
                complaint = f"ended its process with {process.exitcode}"
                found.append((left[0], [_finding(left[0], complaint, errors.read().decode(errors="replace")[:4000])]))
                left = numbers[len(found) :]
    return found


def _work(numbers, errors, sending):
    os.dup2(errors.fileno(), 2)
    sys.__stderr__ = sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    sandbox.limit_memory()
    for number in numbers:
        with tempfile.TemporaryDirectory(prefix=f"{number}-", dir=_BEGUN["place"]) as folder:
            try:
                findings = list(_BEGUN["plan"].run(number, Path(folder)))
            except Exception as error:  # noqa: BLE001  (a fault of the tests is told like any other)
                findings = [_finding(number, f"broke the test: {error}", traceback.format_exc())]
        sending.send((number, findings))


def _finding(number, complaint, said):
    return Finding(repr(_BEGUN["plan"].change_of(number))[:120], None, complaint, said)
