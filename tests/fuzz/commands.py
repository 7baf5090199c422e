import argparse
import fnmatch
import functools
import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from autorecompute import cli
from autorecompute.emit import RENDERERS
from fuzz.changes import ESCAPES, PATHS, TEXTS, with_paths
from fuzz.valid import QUICK, SCRIPT, TUNED

IMPORTED = "imported"
ARCHIVE = "archives/tuned.jsonl"
TUNE = f"tune {SCRIPT} --target-batch 32 --memory-limit 600MiB --study {{study}} {shlex.join(QUICK)}"
NEW = TUNE.replace("{study}", "new")

HEAD_READERS = [
    *(f"emit {{study}} --format {name}" for name in RENDERERS),
    "run {study} -- /usr/bin/env -0",
    *("show", "show --json", "studies list", "studies list --json", "studies show {study}"),
    *("studies prune", "studies prune --dry-run", "studies delete {study} --force"),
]
"""What reads the head and the answer of a study alone, and takes some milliseconds."""

READERS = [
    *("show {study}", "show {study} --json", "show {study} --why"),
    *("studies export {study}", "studies export {study} -o out.jsonl", "studies export {study} -o out.jsonl.gz"),
]
"""What reads all of it."""

SLOW_READERS = ["report {study}", "report {study} -o out.html", TUNE, NEW]
SLOW_READERS += [f"{TUNE} {option}" for option in ("--fresh", "--knobs", "--json", "--sampler greedy")]
SLOW_READERS += ["check {study}", f"check {{study}} --json -- {SCRIPT}"]

WEIGHTS = (4, 6, 1)
"""How often there is which kind of them."""

VERBS = {
    "plans": f"plans {SCRIPT} --batch 32",
    "doctor": "doctor",
    "import": f"studies import {ARCHIVE} --study {IMPORTED}",
    # With a script it becomes the training, which no sandbox holds.
    "train": f"train missing.py --memory-limit 600MiB --study {TUNED}",
    "nothing": "",
    **{line.replace("{study} ", "").replace(" {study}", ""): line for line in (*HEAD_READERS, *READERS, *SLOW_READERS)},
}
"""Command lines to begin from."""

PLANS = "studies/{study}/best*"
"""The file of plans, which is written anew where it is not as it was."""

CHANGES = {
    **dict.fromkeys(("show", "emit", "run", "studies show"), ([PLANS], [])),
    "tune": (["studies", "studies/{study}", "studies/{study}/*", "studies/.draft*"], ["studies/{study}/*"]),
    "check": (["studies/{study}/workers*", "studies/{study}/checked.json", PLANS], []),
    "report": (["studies/{study}/report.html", PLANS], []),
    "studies import": (["studies", "studies/{study}", "studies/{study}/*", "studies/.draft*"], []),
    "studies delete": ([], ["studies/{study}", "studies/{study}/*"]),
    "studies prune": ([], ["studies/*"]),
}
"""What a verb may make or change, and what it may remove."""

WRITING = ("-o", "--output", "--picture", "--storage")
"""What is given after one of these is where the user wants a file."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run, about one study or about any; it may undo what a killed process wrote to the database."""

    arguments: tuple[str, ...]
    study: str = "*"
    stdin: str = os.devnull
    variables: tuple[tuple[str, str], ...] = ()
    undoes: bool = False

    @property
    def verb(self):
        return " ".join(self.arguments[: 2 if self.arguments[:1] == ("studies",) else 1])

    @property
    def is_json(self):
        """Whether what it prints is one JSON object."""
        own = self.arguments[: self.arguments.index("--")] if "--" in self.arguments else self.arguments
        if any(argument.startswith("--output=") for argument in own):
            return False
        return "--json" in own or self.arguments[-2:] == ("--format", "json")

    def may_change(self, name, *, is_gone):
        writes, removes = CHANGES.get(self.verb, ([], []))
        allowed = [*removes] if is_gone else [*writes]
        if self.undoes:
            allowed.append("studies/*/study.db-*" if is_gone else "studies/*/study.db")
        if not is_gone and any(word.startswith(WRITING) for word in self.arguments):
            allowed.append("*" if self.study == "*" else "out.*")
        if is_gone and "--force" in self.arguments:
            allowed.append("studies/{study}/*")
        return any(fnmatch.fnmatchcase(name, pattern.replace("{study}", self.study)) for pattern in allowed)


def reader_of(file, draw):
    return _command(_draw_reader(draw), file.split("/")[1], undoes="study.db-" in file)


def follower(draw):
    return _command(_draw_reader(draw), IMPORTED)


def _draw_reader(draw):
    return draw.choice(draw.choices((HEAD_READERS, READERS, SLOW_READERS), WEIGHTS)[0])


def import_of(file, draw):
    # A shell would wait for who writes a pipe, and open nothing that is gone.
    if draw.random() < 0.2 and Path(file).is_file():
        return Command(("studies", "import", "-", "--study", IMPORTED), IMPORTED, stdin=file)
    return _command(f"studies import {file} --study {IMPORTED}", IMPORTED)


def check_of_import(draw):
    check = _command(f"check {{study}} -- {SCRIPT}", IMPORTED)
    return check, _command(draw.choice(HEAD_READERS[: len(RENDERERS) + 1]), IMPORTED)


def _command(line, study, *, undoes=False):
    own = "new" if line.startswith(NEW) else study
    return Command(tuple(line.format(study=study).split()), own, undoes=undoes)


def _can_be_given(text):
    return "\0" not in text and not re.search("[\ud800-\udc7f\udd00-\udfff]", text)


WORDS = [
    *filter(_can_be_given, TEXTS),
    *PATHS,
    *("0", "-1", "1e999", "9" * 400, "9" * 5000, f"{'9' * 400}GiB", "\u0663\u0662", "1_000", "nan", "inf", "8,16,,32"),
    *("sequence=9999999999999999999999", "5GiB", "1s", "--", "-", "x" * 300, f"{'x' * 300}.py", "x/" * 3000),
    *(TUNED, f"{TUNED}/", f"studies/{TUNED}", f"studies/{TUNED}/study.json", ARCHIVE, "studies", f"{SCRIPT}/x"),
    *("loop", "loop/x.html", "pipe", "missing/x.html", "/dev/zero", "/dev/full"),
    *("sqlite:///pipe", "sqlite:///loop", "sqlite:///studies", f"sqlite:///{SCRIPT}", "sqlite://", "oracle://me:s@h/b"),
    *("postgresql://me:secret@localhost:port/base", "postgresql://", "postgresql://me:secret@[::1"),
    "mysql+x://me:s@h/b",
]

VARIABLES = {
    "COLUMNS": ("0", "1", "-5", "9" * 30, "x"),
    "AUTORECOMPUTE_STORAGE": tuple(word for word in WORDS if word.startswith(("sqlite:", "postgresql:"))),
    "ORTMODULE_LOG_LEVEL": ("", "FOO", "VERBOSE", ESCAPES),
    "ORTMODULE_MEMORY_OPT_LEVEL": ("7", "", ESCAPES),
    "ORTMODULE_MEMORY_OPT_CONFIG": ("pipe", "/dev/zero", "loop", ESCAPES),
    "PYTHONPATH": ("", ":", ESCAPES),
    "HOME": ("", "missing", SCRIPT),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    base: str
    word: str

    def command(self, draw):
        arguments, word, variables = VERBS[self.base].format(study=TUNED).split(), self.word, ()
        if draw.random() < 0.15:
            name = draw.choice(list(VARIABLES))
            variables = ((name, draw.choice(VARIABLES[name])),)
        for _ in range(draw.choice((1, 1, 1, 2))):
            _change(arguments, self.base, word, draw)
            word = draw.choice(WORDS)
        if any(argument.startswith(WRITING) for argument in arguments):
            # A command that is told to write outside may do so.
            arguments = ["elsewhere" if any(path in word for path in PATHS) else word for word in arguments]
        # It looks at the installation, whatever the studies are.
        arguments = ["doctor", "--unknown", *arguments[1:]] if arguments[:1] == ["doctor"] else arguments
        return Command(tuple(map(with_paths, arguments)), variables=variables)


def prepare():
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")


def _change(arguments, base, word, draw):
    place = draw.randrange(len(arguments) + 1)
    how = draw.choice(("replace", "replace", "option", "option", "drop", "repeat", "insert"))
    if how == "option" and (options := _options(base)):
        option = draw.choice(options)
        arguments[place:place] = draw.choice(([option, word], [f"{option}={word}"], [option]))
    elif how == "insert" or place == len(arguments):
        arguments.insert(place, word)
    else:
        arguments[place : place + 1] = {"drop": [], "repeat": [arguments[place]] * 2}.get(how, [word])


@functools.cache
def _options(base):
    parser = cli.make_parser()
    for word in VERBS[base].split():
        choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
        parser = choices.get(word, parser)
    return [option for action in parser._actions for option in action.option_strings]
