import os
import re
import shlex
import subprocess
import sys
import tempfile

import pytest

from autorecompute import cli
from autorecompute.cli.parsers import prepared

from .conftest import BLOCKS, ROOT, spans_of

FOREIGN = {
    "--array",
    "--batch-size",
    "--compile",
    "--gpus",
    "--ortmodule",
    "--seeds",
    "--share",
    "--shm-size",
    "--time",
    "--weather",
}
"""Options of other programs, benchmarks and the studies' scripts that stand alone in a sentence."""

GONE = {"--wrap"}
"""Options of earlier versions, which the changelog alone may name."""

MODULES = {"python": "", "autorecompute": " -m autorecompute", "torchrun": " -m torch.distributed.run"}
"""What the programs of a reader's environment run; this one's may not be on the path."""


def test_a_command_is_one_that_the_program_takes(command):
    _, words = command
    try:
        cli.make_parser().parse_args(prepared(words[: words.index("--") if "--" in words else None]))
    except SystemExit as ended:
        if ended.code:
            raise


def test_a_shell_script_can_be_read():
    scripts = [block for block in BLOCKS if block.language == "bash"]
    assert any("#SBATCH" in block.text for block in scripts)
    for block in scripts:
        done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{block.place}\n{done.stderr}"


def options_in(span, verbs):
    """Options of ours in a piece of code within a sentence: all behind a verb, else the one that it begins with."""
    words = shlex.split(span.partition(" -- ")[0])
    if words[:1] == ["autorecompute"] or words[:1] in verbs:
        return {word for word in words if word.startswith("--")}
    return {word.partition("=")[0] for word in words[:1] if re.match(r"--[a-z]", word)}


def test_options_in_sentences_exist(page, options, parsers):
    verbs = [[verb] for verb in parsers]
    spoken = set().union(*(options_in(span, verbs) for span in spans_of(page)))
    gone = GONE if page.name == "CHANGELOG.md" else set()
    assert spoken - options - FOREIGN - gone == set()


def test_every_verb_is_in_the_reference(parsers):
    page = (ROOT / "docs" / "reference.md").read_text().partition("\n## Verbs\n")[2]
    described = re.findall(r"^\| `(\w+)", page, re.MULTILINE)
    assert sorted({verb.split()[0] for verb in parsers if verb}) == sorted(set(described))


@pytest.fixture
def workplace(tmp_path, console_page):
    for block in BLOCKS:
        if block.page == console_page and block.title:
            file = tmp_path / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
    return tmp_path


@pytest.fixture
def shell(workplace):
    programs = workplace / ".bin"
    programs.mkdir()
    for name, module in MODULES.items():
        program = programs / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{module} "$@"\n')
        program.chmod(0o755)
    path = os.pathsep.join((str(programs), os.environ["PATH"]))
    modules = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    # Sockets need short paths, and the lock that tunings on one device wait for is nobody else's here.
    with tempfile.TemporaryDirectory(prefix="docs-") as temporary:
        environment = {**os.environ, "PATH": path, "PYTHONPATH": modules, "TMPDIR": temporary}
        yield lambda line: subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=workplace,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def test_a_console_runs(console_page, shell):
    consoles = [block for block in BLOCKS if block.page == console_page and block.language == "console"]
    lines = [line for block in consoles for line in block.typed]
    assert lines
    for line in lines:
        done = shell(line)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
