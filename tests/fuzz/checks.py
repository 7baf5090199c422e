"""What every command is held to, whatever it was given."""

from __future__ import annotations

import fnmatch
import functools
import json
import os
import re
import stat
import subprocess
import tempfile
import unicodedata
from pathlib import Path

from autorecompute.backends import ORTMODULE, emission_of
from autorecompute.startup import WRAP_VARIABLE
from autorecompute.worker.protocol import BATCH_VARIABLE

OUTCOMES = Path(__file__).parents[2] / "docs" / "outcomes.md"

_TURNING = {"\u2028", "\u2029", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""What breaks a line or turns the direction of reading, beside the control characters."""


@functools.cache
def documented_codes():
    """The exit codes that the documentation has."""
    section = OUTCOMES.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


EMISSION = emission_of(ORTMODULE)
PLANS_FILE = re.compile(r".*/work/studies/[^/]+/best/plans\.json")
ROWS = re.compile(r"(?:[A-Za-z]\w*\+)+:[12]:-1(?:,(?:[A-Za-z]\w*\+)+:[12]:-1)*")
"""How ONNX Runtime before 1.19 is given plans."""

_OWN = {name: value for knob in EMISSION.KNOBS for name, value in knob.variables.items()}
_INHERITED = {"HOME", "TMPDIR", "PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONPATH"}
"""What a command has in its environment without any study."""


def snapshot(folder):
    """What is in a folder: each entry's type, rights, and when it was written to, by its path."""
    found, folders = {}, [folder]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                is_folder = stat.S_ISDIR(status.st_mode)
                times = () if is_folder else (status.st_ino, status.st_size, status.st_mtime_ns)
                found[os.path.relpath(entry.path, folder)] = (status.st_mode, *times)
                if is_folder:
                    folders.append(entry.path)
    return found


def complaints(command, ended, before, after):
    """What is wrong with a command that ended, a line each.

    Args:
        command: What was run.
        ended: How it ended.
        before: Snapshots of the working directory and of what lies outside.
        after: The same afterwards.
    """
    yield from _ending(command, ended)
    yield from (f"did what no command may do: {line}" for line in ended.touched)
    yield from _changes(command, before, after)
    is_other = command.verb == "run" and ended.code == 0
    for name, text in (("standard error", ended.err), *(() if is_other else (("standard output", ended.out),))):
        yield from _readable(name, text)
    if ended.code == 0 and not {"-h", "--help", "--version"}.intersection(command.arguments):
        yield from _answer(command, ended)


def _ending(command, ended):
    if ended.crash:
        yield f"ended with {ended.crash.strip().splitlines()[-1][:300]}"
    elif ended.code is None:
        yield "took too long"
    elif b"Traceback" in ended.err:
        yield "printed a traceback"
    elif ended.code not in documented_codes() and command.verb != "run":
        yield f"ended with the exit code {ended.code}, which is not documented"
    elif ended.code and not ended.err.strip():
        yield f"ended with {ended.code} and not a word"


def _changes(command, before, after):
    if before["outside"] != after["outside"]:
        yield f"changed what lies outside: {sorted(set(before['outside'].items()) ^ set(after['outside'].items()))}"
    old, new = before["work"], after["work"]
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) == new.get(name):
            continue
        allowed = command.writes if name in new else command.removes
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in allowed):
            yield f"{'changed' if name in old and name in new else 'made' if name in new else 'removed'} {name}"


def _readable(name, text):
    # A path may be no UTF-8, and is printed as the bytes that it is.
    if wrong := controls_in(text.decode(errors="surrogateescape")):
        yield f"{name} has control characters: {wrong}"


def controls_in(text):
    """The characters of a text that a terminal obeys instead of showing them."""
    return sorted({sign for sign in set(text) - {"\n"} if unicodedata.category(sign) == "Cc" or sign in _TURNING})


def _answer(command, ended):
    verb = command.verb
    if command.is_json:
        yield from _json(ended.out)
    if verb == "report":
        yield from _page(Path(os.fsdecode(ended.out.removesuffix(b"\n"))))
    if verb == "run" and command.arguments[-2:] == ("/usr/bin/env", "-0"):
        yield from _environment("run", _read_environment(ended.out))
    if verb == "emit" and "-o" not in command.arguments:
        yield from _emitted(command, ended.out.decode(errors="surrogateescape"))


def _json(text):
    try:
        json.loads(text, parse_constant=_refuse)
    except ValueError as error:
        yield f"printed what is no JSON: {error}"


def _refuse(word):
    raise ValueError(word)


def _page(file):
    text = file.read_text(encoding="utf-8")
    if wrong := set(controls_in(text)) - {"\t"}:
        yield f"the page has control characters: {sorted(wrong)}"
    for markup in ("<script>alert", "<img src=x", "{{ 7*7"):
        if markup in text and markup[0] == "<":
            yield f"the page has {markup} of a stored text"


def _emitted(command, text):
    if command.is_json:
        yield from _environment("emit", json.loads(text)["environment"])
        return
    if "dotenv" in command.arguments:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        yield from _environment("emit", dict(line.partition("=")[::2] for line in lines))
        return
    yield from sourced(text)


def sourced(text):
    """What is wrong with what a shell makes of a text, in an empty folder and with no program to be found."""
    with tempfile.TemporaryDirectory() as empty:
        script = f"PATH={empty}; . /dev/stdin; exec /usr/bin/env -0"
        given = text.encode(errors="surrogateescape")
        done = subprocess.run(
            ["/bin/sh", "-c", script], cwd=empty, env={}, input=given, capture_output=True, check=False
        )
        if done.returncode or done.stderr:
            yield f"a shell does not take what is emitted: {done.stderr[:300]!r}"
        if made := sorted(path.name for path in Path(empty).iterdir()):
            yield f"a shell that takes what is emitted makes {made}"
        yield from _environment("emit", _read_environment(done.stdout))


def _read_environment(dump):
    return dict(line.partition("=")[::2] for line in dump.decode(errors="surrogateescape").split("\0") if line)


def _environment(verb, environment):
    for name, value in environment.items():
        if name not in _INHERITED and not _is_ours(name, value):
            yield f"{verb} sets {name} to {value!r:.100}"


def _is_ours(name, value):
    """Whether a config or a knob may set a variable to this."""
    if name == EMISSION.CONFIG_VARIABLE:
        return bool(PLANS_FILE.fullmatch(value) or ROWS.fullmatch(value))
    if name == EMISSION.LEVEL_VARIABLE:
        return value in {"1", "2"}
    if name == BATCH_VARIABLE:
        return value.isdecimal()
    return value == ("1" if name == WRAP_VARIABLE else _OWN.get(name))
