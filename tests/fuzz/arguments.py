"""Command lines that nobody means: any verb, with words and options that it does not expect."""

from __future__ import annotations

import argparse
import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from autorecompute import cli
from fuzz.commands import ENV, Command
from fuzz.valid import QUICK, SCRIPT, TUNED, UNANSWERED
from fuzz.values import TEXTS, with_paths

ARCHIVE = "archives/tuned.jsonl"

VALID = {
    "show": ("show", TUNED),
    "show --json": ("show", TUNED, "--json"),
    "list": ("studies", "list"),
    "studies show": ("studies", "show", TUNED),
    "compare": ("studies", "compare", TUNED, UNANSWERED),
    "export": ("studies", "export", TUNED, "-o", "out.jsonl"),
    "import": ("studies", "import", ARCHIVE, "--study", "imported"),
    "delete": ("studies", "delete", TUNED, "--force"),
    "prune": ("studies", "prune", "--dry-run"),
    "report": ("report", TUNED, "-o", "out.html"),
    "emit": ("emit", TUNED, "--format", "shell"),
    "emit -o": ("emit", TUNED, "-o", "out.env"),
    "run": ("run", TUNED, "--", *ENV),
    "check": ("check", TUNED, "--", SCRIPT),
    "tune": ("tune", SCRIPT, "--target-batch", "32", "--memory-limit", "600MiB", "--study", "new", *QUICK),
    "plans": ("plans", SCRIPT, "--batch", "32"),
    "doctor": ("doctor",),
    "nothing": (),
}
"""Command lines to begin from."""


def _can_be_given(text):
    """Whether the system lets a word be an argument."""
    return "\0" not in text and not re.search("[\ud800-\udc7f\udd00-\udfff]", text)


WORDS = {
    **{name: text for name, text in TEXTS.items() if _can_be_given(text)},
    "nought": "0",
    "minus one": "-1",
    "exponent": "1e999",
    "digits": "9" * 400,
    "many digits": "9" * 5000,
    "digits with a unit": f"{'9' * 400}GiB",
    "other digits": "\u0663\u0662",
    "underscores": "1_000",
    "NaN": "nan",
    "infinity": "inf",
    "list of numbers": "8,16,,32",
    "dimension": "sequence=9999999999999999999999",
    "size": "5GiB",
    "time": "1s",
    "study": TUNED,
    "study with slash": f"{TUNED}/",
    "path of a study": f"studies/{TUNED}",
    "file of a study": f"studies/{TUNED}/study.json",
    "archive": ARCHIVE,
    "symlink to itself": "loop",
    "below a symlink to itself": "loop/x.html",
    "pipe": "pipe",
    "folder": "studies",
    "missing folder": "missing/x.html",
    "below a file": f"{SCRIPT}/x",
    "long name": "x" * 300,
    "long script": f"{'x' * 300}.py",
    "longest path": "x/" * 3000,
    "endless device": "/dev/zero",
    "full device": "/dev/full",
    "separator": "--",
    "dash": "-",
    "journal of nobody": "journal:~nouser/x",
    "journal in a pipe": "journal:pipe",
    "journal in a loop": "journal:loop",
    "journal in a folder": "journal:studies",
    "journal of another kind": f"journal:{SCRIPT}",
    "journal nowhere": "journal:",
    "no port": "postgresql://me:secret@localhost:port/base",
    "no host": "postgresql://",
    "half an address": "postgresql://me:secret@[::1",
    "other database": "mysql://me:secret@localhost/base",
}

_LEADING_OUT = {"absolute path", "path upwards"}
_WRITING = ("-o", "--output", "--picture", "--storage")
"""What is given after one of these is where the user wants a file."""

VARIABLES = {
    "COLUMNS": ("0", "1", "-5", "9" * 30, "x"),
    "AUTORECOMPUTE_STORAGE": tuple(word for name, word in WORDS.items() if "journal" in name or "host" in name),
    "ORTMODULE_LOG_LEVEL": ("", "FOO", "VERBOSE", TEXTS["escape sequences"]),
    "ORTMODULE_MEMORY_OPT_LEVEL": ("7", "", TEXTS["escape sequences"]),
    "ORTMODULE_MEMORY_OPT_CONFIG": ("pipe", "/dev/zero", "loop", TEXTS["escape sequences"]),
    "PYTHONPATH": ("", ":", TEXTS["escape sequences"]),
    "HOME": ("", "missing", SCRIPT),
}


@dataclass(frozen=True, slots=True)
class Arguments:
    """A command line that is changed.

    Attributes:
        base: Which one.
        word: Name of the word that comes in.
    """

    base: str
    word: str

    def __str__(self):
        return f"{self.base} with {self.word}"

    def command(self, draw):
        """The command, and what was done to it."""
        arguments, word = list(VALID[self.base]), self.word
        variables = ()
        if draw.random() < 0.15:
            name = draw.choice(list(VARIABLES))
            variables = ((name, draw.choice(VARIABLES[name])),)
        for _ in range(draw.choice((1, 1, 1, 2))):
            _change(arguments, self.base, word, draw)
            word = draw.choice(list(WORDS))
        arguments = [_safe(arguments, argument) for argument in arguments]
        # It looks at the installation, whatever the studies are.
        arguments = ["doctor", "--unknown", *arguments[1:]] if arguments[:1] == ["doctor"] else arguments
        return Command(tuple(arguments), *_changes_of(arguments), variables=variables)


def all_arguments():
    """Every command line with every word, in a fixed order."""
    return [Arguments(base, word) for base in VALID for word in WORDS]


def prepare():
    """Puts what the words speak of into the working directory."""
    Path("loop").symlink_to("loop")
    os.mkfifo("pipe")


def _change(arguments, base, word, draw):
    place = draw.randrange(len(arguments) + 1)
    options = _options(base)
    how = draw.choice(("replace", "replace", "insert", "option", "option", "drop", "repeat"))
    if how == "option" and options:
        option = draw.choice(options)
        arguments[place:place] = draw.choice(([option, WORDS[word]], [f"{option}={WORDS[word]}"], [option]))
    elif how == "replace" and place < len(arguments):
        arguments[place] = WORDS[word]
    elif how == "drop" and place < len(arguments):
        del arguments[place]
    elif how == "repeat" and place < len(arguments):
        arguments.insert(place, arguments[place])
    else:
        arguments.insert(place, WORDS[word])


def _safe(arguments, argument):
    """The argument, but for a place outside where a command is told to write."""
    leads_out = any(WORDS[name] in argument for name in _LEADING_OUT)
    if leads_out and any(word.startswith(_WRITING) for word in arguments):
        return "elsewhere"
    return with_paths(argument)


WRITES = {
    ("tune",): ("studies", "studies/*"),
    ("check",): ("studies/*/workers/*",),
    ("studies", "import"): ("studies/*",),
    **dict.fromkeys((("show",), ("emit",), ("run",), ("report",)), ("studies/*/report.html", "studies/*/best*")),
    ("studies", "show"): ("studies/*/best*",),
}
"""Where a verb may make or change files that nobody named."""

REMOVES = (("tune",), ("studies", "delete"), ("studies", "prune"))


def _changes_of(arguments):
    """What a command may write and remove."""
    verbs = (tuple(arguments[:1]), tuple(arguments[:2]))
    removes = any(verb in REMOVES for verb in verbs) or "--force" in arguments
    if any(word.startswith(_WRITING) for word in arguments):
        return ("*",), ("studies/*",) * removes
    return next((WRITES[verb] for verb in verbs if verb in WRITES), ()), ("studies/*",) * removes


@functools.cache
def _options(base):
    """The options of a verb; those of ``doctor`` would build something."""
    parser = cli.make_parser()
    for word in VALID[base]:
        choices = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
        parser = choices.get(word, parser)
    found = [option for action in parser._actions for option in action.option_strings]
    return [option for option in found if base != "doctor" or option == "--help"]
