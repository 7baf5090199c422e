"""The documentation as tests see it: its blocks of code, and the commands in them.

A block of ``console`` is run, each line after ``$``, in a folder that holds the page's blocks with a ``title``.
Commands of ours in any other block are read by the real parser, and go no further.
"""

import argparse
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
    page: str
    line: int
    language: str
    title: str | None
    text: str

    @property
    def place(self):
        return f"{self.page}:{self.line}"

    @property
    def typed(self):
        return [line.removeprefix("$ ") for line in self.text.splitlines() if line.startswith("$ ")]


def _tokens(page):
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [inner for token in tokens for inner in (token, *(token.children or ()))]


def find_blocks(page):
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


def links_of(page):
    return [token.attrs[name] for token in _tokens(page) for name in ("href", "src") if name in (token.attrs or {})]


def spans_of(page):
    """The pieces of code within the sentences of a page."""
    return [token.content for token in _tokens(page) if token.type == "code_inline"]


def _parsers(parser):
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from _parsers(inner)


@pytest.fixture(scope="session")
def parsers():
    return {parser.prog.removeprefix(PROGRAM).strip(): parser for parser in _parsers(cli.make_parser())}


@pytest.fixture(scope="session")
def options(parsers):
    return {word for parser in parsers.values() for action in parser._actions for word in action.option_strings}
