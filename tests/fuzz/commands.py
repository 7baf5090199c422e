"""The commands that read a study, an archive or their arguments, and what each of them may change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from autorecompute.emit import RENDERERS
from fuzz.valid import QUICK, SCRIPT

ENV = ("/usr/bin/env", "-0")
OTHER = "unanswered"
"""A valid study beside the one that was changed."""

IMPORTED, NEW = "imported", "new"
CHECKED = 0.2
"""Share of the imported studies that are checked."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run.

    Attributes:
        arguments: Those of ``autorecompute``.
        writes: Where it may make or change files, as patterns from the working directory on.
        removes: Where it may remove some.
        stdin: The file that it reads.
        variables: What is added to its environment.
    """

    arguments: tuple[str, ...]
    writes: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    stdin: str = "/dev/null"
    variables: tuple[tuple[str, str], ...] = ()

    @property
    def verb(self):
        """The verb with its own verb."""
        return " ".join(self.arguments[: 2 if self.arguments[:1] == ("studies",) else 1])

    @property
    def is_json(self):
        """Whether what it prints is one JSON object."""
        own = self.arguments[: self.arguments.index("--")] if "--" in self.arguments else self.arguments
        return "--json" in own or self.arguments[-2:] == ("--format", "json")


def _emit(study, draw):
    return Command(("emit", study, "--format", draw.choice(list(RENDERERS))), writes=_plans(study))


def _run(study, _):
    return Command(("run", study, "--", *ENV), writes=_plans(study))


def _list(_, draw):
    words = draw.choice([("show",), ("studies", "list")])
    return Command((*words, *draw.choice([(), ("--json",)])))


def _prune(_, draw):
    if draw.random() < 0.3:
        return Command(("studies", "prune", "--dry-run"))
    return Command(("studies", "prune"), removes=("studies/*",))


def _delete(study, _):
    return Command(("studies", "delete", study, "--force"), removes=(f"studies/{study}/*", f"studies/{study}"))


def _check(study, draw):
    words = draw.choice([(), ("--", SCRIPT)])
    return Command(("check", study, *draw.choice([(), ("--json",)]), *words), writes=_under(study, "workers"))


def _show(study, draw):
    arguments = ("show", study, *draw.choice([(), ("--why",)]), *draw.choice([(), ("--json",)]))
    return Command(arguments, writes=_plans(study))


def _compare(study, draw):
    return Command(("studies", "compare", *draw.sample([study, OTHER], 2), *draw.choice([(), ("--json",)])))


def _export(study, draw):
    file = draw.choice(["", "out.jsonl", "out.jsonl.gz"])
    return Command(("studies", "export", study, *(("-o", file) if file else ())), writes=("out.jsonl*",))


def _report(study, draw):
    file = draw.choice(["", "out.html"])
    writes = ("out.html", *_under(study, "report.html"), *_plans(study))
    return Command(("report", study, *(("-o", file) if file else ())), writes=writes)


def _go_on(study, draw):
    return _tune(study, draw)


def _begin(_, draw):
    return _tune(NEW, draw)


def _tune(study, draw):
    changed = draw.choice([(), (), ("--fresh",), ("--knobs",), ("--json",), ("--sampler", "greedy")])
    arguments = ("tune", SCRIPT, "--target-batch", "32", "--memory-limit", "600MiB", "--study", study, *QUICK, *changed)
    return Command(arguments, writes=(*_under(study, ""), "studies/.draft*"), removes=_under(study, ""))


def _plans(study):
    """What is written anew where it is not as it was: the file of plans that the variables name."""
    return _under(study, "best")


def _under(study, name):
    folder = f"studies/{study}/{name}".rstrip("/")
    return (folder, f"{folder}/*")


QUICK_READERS = {_emit: 8, _run: 2, _list: 5, _prune: 3, _delete: 1}
"""What reads the head and the answer of a study alone, and takes some milliseconds."""

FULL_READERS = {_show: 1, _export: 1, _compare: 0.3, _check: 0.5, _go_on: 0.1, _begin: 0.1, _report: 0.05}
"""What reads all of it; a page takes half a second."""

READERS = {
    "study.json": {**QUICK_READERS, **FULL_READERS},
    "result.json": {**QUICK_READERS, **FULL_READERS, _report: 0.2},
    "study.db": {**FULL_READERS, _prune: 0.3},
    "batches.json": {_show: 2, _export: 2, _prune: 1, _report: 0.2},
    "shared.json": {_show: 2, _export: 2, _prune: 1, _list: 1},
    "in_progress.json": {_prune: 2, _show: 1, _go_on: 1},
    "race.json": {_export: 2, _show: 0.5, _go_on: 0.2, _report: 0.2},
    "analysis.json": {_export: 2, _go_on: 0.2, _begin: 0.2, _report: 0.2},
    "rejected.json": {_export: 2, _go_on: 0.5, _begin: 0.2},
    "confirmed.json": {_export: 2, _go_on: 0.5, _begin: 0.2},
    "plans.json": {_emit: 3, _run: 2, _check: 1},
}
"""Who reads a file, by its name, and how often each of them is tried."""

ANY_READER = {**QUICK_READERS, **FULL_READERS, _go_on: 0.4}

FOLLOWERS = {_emit: 1, _run: 1, _show: 2, _export: 1, _compare: 0.5, _begin: 0.3, _list: 2, _prune: 1, _report: 0.1}


def reader_of(file, study, draw):
    """A command that reads a file of a study."""
    name = file.rpartition("/")[2].partition("-")[0]
    return _drawn(READERS.get(name, ANY_READER), study, draw)


def undoing(command):
    """The command, which may undo what a killed process wrote to the database: SQLite's journals are for that."""
    database = "studies/*/study.db"
    return replace(command, writes=(*command.writes, database), removes=(*command.removes, f"{database}-*"))


def followers(draw):
    """Commands that read an imported study; what to train with is given out after a check alone."""
    if draw.random() < CHECKED:
        check = Command(("check", IMPORTED, "--", SCRIPT), writes=(*_under(IMPORTED, "checked.json"), *_under(IMPORTED, "workers"), *_plans(IMPORTED)))
        return check, draw.choice((_emit, _run))(IMPORTED, draw)
    return (_drawn(FOLLOWERS, IMPORTED, draw),)


def import_of(file, draw):
    """The command that reads an archive."""
    writes = (*_under(IMPORTED, ""), "studies", "studies/.draft*")
    # A shell would wait for who writes a pipe, and open nothing that is gone.
    if draw.random() < 0.2 and Path(file).is_file():
        return Command(("studies", "import", "-", "--study", IMPORTED), writes=writes, stdin=file)
    return Command(("studies", "import", file, "--study", IMPORTED), writes=writes)


def _drawn(weights, study, draw):
    return draw.choices(list(weights), list(weights.values()))[0](study, draw)
