"""Puts into the site what is written elsewhere: other files, the screen of a tuning, options, and cards."""

from __future__ import annotations

import argparse
import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

from autorecompute.backends.torch.forecast.cards import CARDS, GIGA, TERA, capability_of
from autorecompute.cli import make_parser
from autorecompute.units import GIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
LINK = re.compile(r"\]\(([^)#:\s]+)((?:#[^)\s]*)?)\)")
SAMPLE = "<!-- the last screen of a first tuning -->"
OPTIONS = "<!-- the options of every verb -->"
KNOWN_CARDS = "<!-- the known cards -->"
COLUMNS = "82"
KINDS = {"float32": "float32", "tf32": "TF32", "bfloat16": "bfloat16", "float16": "float16"}
"""Types of numbers and how the table of cards heads them."""


@dataclass(frozen=True)
class Source:
    """A file outside of ``docs/`` that is a page of the site.

    Attributes:
        path: The file, from the root of the repository.
        title: The page's heading, where the file's own is not shown.
        begins: The text that the page begins with; empty for the whole file.
    """

    path: str
    title: str = ""
    begins: str = ""

    def read(self) -> str:
        """The page."""
        _, begins, rest = (ROOT / self.path).read_text().partition(self.begins or "# ")
        return f"# {self.title}\n\n{begins}{rest}" if self.title else f"{begins}{rest}"


PAGES = {
    "changelog.md": Source("CHANGELOG.md"),
    "contributing.md": Source("CONTRIBUTING.md"),
    "files.md": Source("studies/README.md", title="Files of a study", begins="`autorecompute tune` keeps"),
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages whose text lies outside of ``docs/``."""
    for name, source in PAGES.items():
        files.append(File.generated(config, name, content=source.read()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page with its marks filled in and its links made to work within the site."""
    del config, files
    name = page.file.src_uri
    folder = posixpath.dirname(PAGES[name].path if name in PAGES else f"{DOCS}/{name}")
    if OPTIONS in markdown:
        parser = make_parser()
        markdown = markdown.replace(OPTIONS, "\n".join([_help_of(parser), *describe_verbs(parser)]))
    if SAMPLE in markdown:
        markdown = markdown.replace(SAMPLE, read_sample())
    if KNOWN_CARDS in markdown:
        markdown = markdown.replace(KNOWN_CARDS, "\n".join(describe_cards()))
    return LINK.sub(lambda link: f"]({_within_site(link[1], folder, name)}{link[2]})", markdown)


def _within_site(target: str, folder: str, name: str) -> str:
    """A link as the page has it, from another of its pages to the page that a file is shown on."""
    path = posixpath.normpath(posixpath.join(folder, target))
    shown = {source.path: page for page, source in PAGES.items()}.get(path, path.removeprefix(f"{DOCS}/"))
    is_page = shown != path
    return posixpath.relpath(shown, posixpath.dirname(name) or ".") if is_page else target


def read_sample() -> str:
    """The block of the first tuning's page that shows the last screen of one."""
    page = (ROOT / DOCS / "first-tuning.md").read_text()
    blocks = re.findall(r"^```\w*\n.*?^```$", page, re.MULTILINE | re.DOTALL)
    return next(block for block in blocks if "\nverdict: " in block)


def describe_cards() -> Iterator[str]:
    """The table of the cards that fake tensors can stand for, with the source of each, as lines of Markdown."""
    head = ("`--card`", "compute capability", "memory, GiB", "GB/s", *KINDS.values(), "source")
    yield from (_row_of(head), "|---" * len(head) + "|")
    for name, card in CARDS.items():
        capability = ".".join(map(str, capability_of(name)))
        sizes = (f"{card.memory_bytes / GIB:.4g}", f"{card.bytes_per_second / GIGA:g}")
        speeds = card.operations_per_second
        teraflops = (f"{speeds[kind] / TERA:g}" if kind in speeds else "-" for kind in KINDS)
        yield _row_of((name, capability, *sizes, *teraflops, card.source))


def _row_of(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def describe_verbs(parser: argparse.ArgumentParser, depth: int = 2) -> Iterator[str]:
    """A heading and the help of each verb, and of the verbs below it, as lines of Markdown."""
    for action in parser._actions:  # noqa: SLF001  (argparse has no public way to its verbs)
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            for verb in action.choices.values():
                words = verb.prog.removeprefix(f"{parser.prog.split()[0]} ")
                yield f"{'#' * depth} {words}\n\n{_help_of(verb)}"
                yield from describe_verbs(verb, depth + 1)


def _help_of(parser: argparse.ArgumentParser) -> str:
    os.environ["COLUMNS"] = COLUMNS  # what argparse breaks lines by
    return f"```text\n{parser.format_help()}```\n"
