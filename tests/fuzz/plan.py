"""Which change is made in which case, and a case from its beginning to its end."""

from __future__ import annotations

import contextlib
import random
import re
from dataclasses import dataclass
from pathlib import Path

from fuzz import arguments, checks, commands, valid
from fuzz.arguments import Arguments
from fuzz.changes import Field, fields_of
from fuzz.files import Place, places_of
from fuzz.sandbox import Sandbox

TURNS = (Field, Place, Field, Arguments, Field)
"""Which kind of change one case after the other makes."""

LONGEST = 120
ENCODINGS = (*["utf-8"] * 9, "ascii")
"""What a terminal can show: mostly anything."""


class Plan:
    """All changes there are, each kind in an order of its own that the seed gives.

    Args:
        source: The folder of valid studies.
        seed: Gives the orders, and what each case does.
    """

    def __init__(self, source, seed):
        self.seed = seed
        self.source = {
            str(path.relative_to(source)): None if path.is_dir() else path.read_bytes()
            for path in sorted(source.rglob("*"))
        }
        with contextlib.chdir(source):
            self.changes = {
                Field: list(_fields()),
                Place: list(_places()),
                Arguments: arguments.all_arguments(),
            }
        draw = random.Random(seed)
        for entries in self.changes.values():
            draw.shuffle(entries)

    @property
    def size(self):
        """How many changes there are."""
        return sum(map(len, self.changes.values()))

    def change_of(self, number):
        """The change of a case: none of its kind comes twice before all of it came."""
        rounds, turn = divmod(number, len(TURNS))
        kind = TURNS[turn]
        place = rounds * TURNS.count(kind) + TURNS[:turn].count(kind)
        return self.changes[kind][place % len(self.changes[kind])]

    def run(self, number, place):
        """Runs a case in a folder of its own; what was wrong with each of its commands."""
        draw = random.Random(f"{self.seed}:{number}")
        return list(Case(self.change_of(number), self.source, place).run(draw))


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong.

    Attributes:
        change: What was changed, in words.
        command: What was run then.
        complaint: What is wrong.
        crash: The traceback, where there is one.
    """

    change: str
    command: tuple[str, ...]
    complaint: str
    crash: str = ""
    said: str = ""

    @property
    def cause(self):
        """What is wrong, and where: the same for those of one cause."""
        places = re.findall(r'/(autorecompute/[^"]+)", line (\d+)', self.crash)
        return self.complaint[:LONGEST] + (" at {}:{}".format(*places[-1]) if places else "")


class Case:
    """A change, and the commands that meet it.

    Args:
        change: The change.
        source: The content of each valid file by its path, and nothing for a folder.
        place: An empty folder.
    """

    def __init__(self, change, source, place):
        self._change, self._source = change, source
        self._place, self._outside = place, place / "outside"
        self._sandbox = Sandbox(place)

    def run(self, draw):
        """What is wrong."""
        self._lay_out()
        with contextlib.chdir(self._sandbox.work):
            if isinstance(self._change, Arguments):
                arguments.prepare()
                yield from self._meet(str(self._change), self._change.command(draw), draw)[1]
                return
            done = self._change.change(draw)
            yield from self._read(done, draw)

    def _read(self, done, draw):
        file = self._change.file
        if not file.startswith(valid.ARCHIVES):
            command = commands.reader_of(file, file.split("/")[1], draw)
            yield from self._meet(done, commands.undoing(command) if "study.db-" in file else command, draw)[1]
            return
        ended, findings = self._meet(done, commands.import_of(file, draw), draw)
        yield from findings
        for command in commands.followers(draw) if ended.code == 0 else ():
            yield from self._meet(done, command, draw)[1]

    def _meet(self, done, command, draw):
        before = self._snapshot()
        ended = self._sandbox.run(
            list(command.arguments),
            stdin=command.stdin,
            variables=command.variables,
            encoding=draw.choice(ENCODINGS),
        )
        found = list(checks.complaints(command, ended, before, self._snapshot()))
        return ended, [Finding(done, command.arguments, complaint, ended.crash, repr(ended.err)+str(command.variables)) for complaint in found]

    def _snapshot(self):
        return {"work": checks.snapshot(self._sandbox.work), "outside": checks.snapshot(self._outside)}

    def _lay_out(self):
        (self._outside / "docs").mkdir(parents=True)
        for name in ("keep.txt", "docs/01.log", "docs/result.json", "docs/output.log"):
            (self._outside / name).write_text("keep\n", encoding="utf-8")
        needed = (valid.SCRIPT, *self._needed())
        for name, content in self._source.items():
            if name.startswith(needed):
                _write(self._sandbox.work / name, content)

    def _needed(self):
        """What the commands may read: the archive, or the study with those that belong to it, and another one."""
        if isinstance(self._change, Arguments):
            return f"studies/{valid.TUNED}", f"studies/{valid.UNANSWERED}", arguments.ARCHIVE
        if self._change.file.startswith(valid.ARCHIVES):
            return self._change.file, f"studies/{valid.UNANSWERED}"
        return f"studies/{self._change.file.split('/')[1]}", f"studies/{valid.UNANSWERED}"


def _write(file, content):
    if content is None:
        file.mkdir(parents=True, exist_ok=True)
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def _documents():
    """The files of each kind, once: a study of its own has most of them, the others what it has not."""
    seen = set()
    for study in (valid.TUNED, valid.BATCHES, valid.SHARED, valid.UNANSWERED):
        for file in sorted(Path("studies", study).rglob("*")):
            within = file.relative_to(Path("studies", study))
            kind = tuple("0000" if part.isdigit() else part for part in within.parts)
            if kind not in seen or (study == valid.BATCHES and kind == ("result.json",)):
                seen.add(kind)
                yield file


def _fields():
    for file in [*sorted(Path(valid.ARCHIVES).iterdir()), *_documents()]:
        if file.suffix in {".json", ".jsonl", ".db"}:
            yield from fields_of(file)


def _places():
    for file in [*sorted(Path(valid.ARCHIVES).iterdir()), *_documents()]:
        yield from places_of(file)
    for study in (valid.TUNED, valid.SHARED):
        yield from places_of(Path("studies", study))
    for ending in ("-journal", "-wal", "-shm"):
        yield from places_of(Path("studies", valid.TUNED, f"study.db{ending}"))
