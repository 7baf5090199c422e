import functools
import json
import os
import re
import stat
import subprocess
import tempfile
import unicodedata
from pathlib import Path

from autorecompute import result
from autorecompute.backends.ortmodule.controller import CONFIG_VARIABLE, IMPORT_HOOK, KNOBS, LEVEL_VARIABLE
from autorecompute.startup import HOOKS_VARIABLE
from autorecompute.training_job import BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE
from fuzz.sandbox import WORK

OUTCOMES = Path(__file__).parents[2] / "docs" / "outcomes.md"
"""What processes may be told to call, whatever a study holds."""

PLANS_FILE = re.compile(rf".*/{WORK}/studies/[^/]+/best/plans\.json")
ROWS = re.compile(r"(?:[A-Za-z]\w*\+)+:[12]:-1(?:,(?:[A-Za-z]\w*\+)+:[12]:-1)*")
"""How ONNX Runtime before 1.19 is given plans."""

_TURNING = {"\u2028", "\u2029", *map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A))}
"""What breaks a line or turns the direction of reading, beside the control characters."""

_INHERITED = {"HOME", "TMPDIR", "PATH", "LANG", "PWD", "OLDPWD", "SHLVL", "_", "PYTHONPATH"}
"""What a command has in its environment without any study."""


@functools.cache
def documented_codes():
    section = OUTCOMES.read_text(encoding="utf-8").partition("## Exit codes")[2].partition("\n## ")[0]
    return {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)}


def snapshot(folder):
    found = {}
    for parent, folders, files in os.walk(folder):
        for path in (f"{parent}/{name}" for name in (*folders, *files)):
            status = os.lstat(path)
            times = () if stat.S_ISDIR(status.st_mode) else (status.st_ino, status.st_size, status.st_mtime_ns)
            found[path.removeprefix(f"{folder}/")] = (status.st_mode, *times)
    return found


def complaints(command, ended, before, after):
    yield from _ending(command, ended)
    yield from (f"did what no command may do: {line}" for line in ended.touched)
    yield from _changes(command, before, after)
    # What ``run`` starts may print what it likes, and end as it likes.
    is_other = command.verb == "run" and ended.code == 0
    is_others_failure = command.verb == "run" and ended.code not in documented_codes()
    own = {"standard error": not is_others_failure, "standard output": not (is_other or is_others_failure)}
    printed = {"standard error": ended.err, "standard output": ended.out}
    for name, text in ((name, printed[name]) for name, is_own in own.items() if is_own):
        # A path may be no UTF-8, and is printed as the bytes that it is.
        if wrong := controls_in(text.decode(errors="surrogateescape")):
            yield f"{name} has control characters: {wrong}"
    if ended.code == 0 and not {"-h", "--help", "--version"}.intersection(command.arguments):
        yield from _answer(command, ended)


def _page(command, text):
    """Where the page lies: as it was asked for, since a path is printed without what a terminal obeys."""
    words = [*command.arguments, *text.splitlines()]
    return Path(words[words.index("-o") + 1] if "-o" in words else words[-1])


def _ending(command, ended):
    if ended.crash:
        yield f"ended with {ended.crash.strip().splitlines()[-1][:300]}"
    elif b"Traceback" in ended.err:
        yield "printed a traceback"
    elif ended.code not in documented_codes() and command.verb != "run":
        yield f"ended with the exit code {ended.code}, which is not documented"
    elif ended.code and not ended.err.strip():
        yield f"ended with {ended.code} and not a word"


def _changes(command, before, after):
    (old, outside), (new, outside_now) = before, after
    if outside != outside_now:
        yield f"changed what lies outside: {sorted(set(outside.items()) ^ set(outside_now.items()))}"
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name) and not command.may_change(name, is_gone=name not in new):
            yield f"{'removed' if name not in new else 'changed' if name in old else 'made'} {name}"


def controls_in(text):
    return sorted({sign for sign in set(text) - {"\n"} if unicodedata.category(sign) == "Cc" or sign in _TURNING})


def _answer(command, ended):
    text = ended.out.decode(errors="surrogateescape")
    if command.is_json:
        try:
            json.loads(text, parse_constant=_refuse)
        except ValueError as error:
            yield f"printed what is no JSON: {error}"
            return
    if command.verb == "report":
        page = _page(command, text).read_text(encoding="utf-8")
        yield from (f"the page has {wrong!r}" for wrong in set(controls_in(page)) - {"\t"})
        yield from (
            f"the page has {wrong} of a stored text" for wrong in ("<script>alert", "<img src=x") if wrong in page
        )
    if command.verb == "run" and command.arguments[-2:] == ("/usr/bin/env", "-0"):
        yield from _environment("run", _variables(text.split("\0")))
    if command.verb == "emit" and "-o" not in command.arguments:
        if command.is_json:
            yield from _environment("emit", json.loads(text)["environment"])
        elif "dotenv" in command.arguments:
            yield from _environment("emit", _variables(line for line in text.splitlines() if line[:1] != "#"))
        else:
            yield from sourced(text)


def _refuse(word):
    raise ValueError(word)


def sourced(text):
    """What is wrong with what a shell makes of a text, in an empty folder and with no program to be found."""
    with tempfile.TemporaryDirectory() as empty:
        words = ["/bin/sh", "-c", f"PATH={empty}; . /dev/stdin; exec /usr/bin/env -0"]
        given = text.encode(errors="surrogateescape")
        done = subprocess.run(words, cwd=empty, env={}, input=given, capture_output=True, check=False)
        if done.returncode or done.stderr:
            yield f"a shell does not take what is emitted: {done.stderr[:300]!r}"
        if made := sorted(path.name for path in Path(empty).iterdir()):
            yield f"a shell that takes what is emitted makes {made}"
        yield from _environment("emit", _variables(done.stdout.decode(errors="surrogateescape").split("\0")))


def _variables(lines):
    return dict(line.partition("=")[::2] for line in lines if line)


def _environment(verb, environment):
    for name, value in environment.items():
        if name not in _INHERITED and not _is_ours(name, value):
            yield f"{verb} sets {name} to {value!r:.100}"


def _is_ours(name, value):
    if name == CONFIG_VARIABLE:
        return bool(PLANS_FILE.fullmatch(value) or ROWS.fullmatch(value))
    if name == result.VARIABLE:
        return bool(re.fullmatch(rf".*/{WORK}/studies/[^/]+/{re.escape(result.NAME)}", value))
    if name in (BATCH_VARIABLE, LIMIT_VARIABLE, PEAK_VARIABLE):
        return value.isdecimal()
    of_knobs = [knob.variables[name] for knob in KNOBS if name in knob.variables]
    return value in {LEVEL_VARIABLE: ["1", "2"], HOOKS_VARIABLE: [IMPORT_HOOK]}.get(name, of_knobs)
