"""The documentation as tests see it: its blocks of code, and the commands in them.

A block of ``console`` is run, each line after ``$``, in a folder that holds the page's blocks with a ``title``.
Commands of ours in any other block are read by the real parser, and go no further.
"""

import argparse
import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from autorecompute import cli

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "studies").rglob("*.md")])
PROGRAM = "autorecompute"
TITLE = re.compile(r'title="([^"]+)"')
SUBSTITUTED = re.compile(r"\$\(([^()]*)\)")
ENDS_A_COMMAND = re.compile(r"[();<>|&]+")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: The file that it stands in, from the root of the repository.
        line: Where it begins there.
        language: The first word behind the fence.
        title: The name of the file that it is, if it has one.
        text: What it holds.
    """

    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def place(self):
        """Where to find it."""
        return f"{self.page}:{self.line}"

    @property
    def typed(self):
        """What a reader types of a console."""
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def _tokens(page):
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def find_blocks(page):
    """The fenced blocks of a page."""
    blocks = []
    for token in _tokens(page):
        if token.type == "fence":
            language, _, attributes = token.info.partition(" ")
            title = TITLE.search(attributes)
            name = str(page.relative_to(ROOT))
            blocks.append(Block(name, token.map[0] + 1, language, title and title[1], token.content))
    return blocks


def find_commands(text):
    """The words of each command of ours in a block, behind the name of the program."""
    for line in text.replace("\\\n", " ").splitlines():
        if f"{PROGRAM} " in line:
            for substituted in SUBSTITUTED.findall(line):
                yield from find_commands(substituted)
            yield from _commands_of(SUBSTITUTED.sub("value", line))


def _commands_of(line):
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for place, word in enumerate(words[:-1]):
        if word == PROGRAM and re.fullmatch(r"[a-z]+|--[a-z]+", words[place + 1]):
            rest = words[place + 1 :]
            end = next((at for at, other in enumerate(rest) if ENDS_A_COMMAND.fullmatch(other)), len(rest))
            yield rest[:end]


BLOCKS = [block for page in PAGES for block in find_blocks(page)]
COMMANDS = [(block, words) for block in BLOCKS for words in find_commands(block.text)]


def pytest_generate_tests(metafunc):
    """A test for each command, each block of Python, each page with a console, and each page."""
    consoles = sorted({block.page for block in BLOCKS if block.language == "console"})
    snippets = [block for block in BLOCKS if block.language == "python"]
    for name, values, ids in (
        ("command", COMMANDS, [f"{block.place} {words[0]}" for block, words in COMMANDS]),
        ("snippet", snippets, [block.place for block in snippets]),
        ("console_page", consoles, consoles),
        ("page", PAGES, [str(page.relative_to(ROOT)) for page in PAGES]),
    ):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, values, ids=ids)


@pytest.fixture(scope="session")
def root():
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def blocks():
    """All fenced blocks."""
    return BLOCKS


@pytest.fixture(scope="session")
def links():
    """Gives the addresses that a page links to or shows pictures from."""
    return lambda page: [
        token.attrs[name] for token in _tokens(page) for name in ("href", "src") if name in (token.attrs or {})
    ]


@pytest.fixture(scope="session")
def spans():
    """Gives the pieces of code within the sentences of a page."""
    return lambda page: [token.content for token in _tokens(page) if token.type == "code_inline"]


def complain_about(words):
    """What the program says against a command, which is not run; ``None`` where it has nothing to say."""
    split = words.index("--") if "--" in words else len(words)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            cli.make_parser().parse_args(cli._join_flag_value(words[:split]))
    except SystemExit as ended:
        return said.getvalue() if ended.code else None
    return None


@pytest.fixture(scope="session")
def read_command():
    """Reads a command as the program does."""
    return complain_about


def _parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


@pytest.fixture(scope="session")
def parsers():
    """The parser of each verb by what a user types for it, and that of all by an empty text."""
    return {parser.prog.removeprefix(PROGRAM).strip(): parser for parser in _parsers(cli.make_parser())}


@pytest.fixture(scope="session")
def options(parsers):
    """Every option of every verb."""
    return {word for parser in parsers.values() for action in parser._actions for word in action.option_strings}
