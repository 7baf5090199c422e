import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from autorecompute.backends.torch.forecast.cards import CARDS, GIGA, TERA, capability_of
from autorecompute.units import GIB

from .conftest import ROOT, links_of

LOADED = {"audio": "src", "iframe": "src", "img": "src", "script": "src", "source": "src", "video": "src"}
"""What a browser fetches by itself, by tag and attribute; links are looked at by their relation."""


class Resources(HTMLParser):
    """What a browser fetches for a page, and where its links go."""

    def __init__(self):
        super().__init__()
        self.fetched, self.links = [], []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag in LOADED and found.get(LOADED[tag]):
            self.fetched.append(found[LOADED[tag]])
        if tag == "link" and found.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(found["href"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    read = {}
    for file in sorted(site.rglob("*.html")):
        read[file] = Resources()
        read[file].feed(file.read_text())
    return read


def test_neither_pages_nor_style_sheets_load_anything_from_elsewhere(site, pages):
    assert len(pages) > 20
    for file, page in pages.items():
        assert page.fetched, file
        assert [address for address in page.fetched if urlsplit(address).netloc] == [], file
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_links_lead_to_a_file_of_the_site_or_to_an_encrypted_host(site, pages):
    for file, page in pages.items():
        for link in (urlsplit(link) for link in page.links):
            assert link.scheme in {"", "https"}
            assert not link.scheme or "." in link.netloc
            if not link.scheme and link.path:
                folder = site if link.path.startswith("/") else file.parent
                assert (folder / link.path.lstrip("/")).exists(), (file, link.path)


def test_links_between_files_lead_to_a_file(page):
    for link in map(urlsplit, links_of(page)):
        if not link.scheme and link.path:
            assert (page.parent / link.path).exists(), link.path


def test_every_option_is_on_the_site(site, options):
    page = (site / "verbs.html").read_text()
    assert [option for option in sorted(options) if option not in page] == []


@pytest.mark.parametrize("name", CARDS)
def test_the_site_has_the_figures_of_every_card_and_where_they_come_from(site, name):
    page = (site / "gpu.html").read_text()
    rows = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)]
    (row,) = [row for row in rows if row and row[0] == name]
    card = CARDS[name]
    speeds = card.operations_per_second
    kinds = ("float32", "tf32", "bfloat16", "float16")
    teraflops = [f"{speeds[kind] / TERA:g}" if kind in speeds else "-" for kind in kinds]
    sizes = [f"{card.memory_bytes / GIB:.4g}", f"{card.bytes_per_second / GIGA:g}"]
    assert row == [name, ".".join(map(str, capability_of(name))), *sizes, *teraflops, card.source]


@pytest.mark.parametrize(
    ("shown_on", "file", "words"),
    [
        ("index.html", "docs/first-tuning.md", r"\A[\s\S]*?^(verdict: .*)$"),
        ("changelog.html", "CHANGELOG.md", r"^## \w.*$"),
        ("contributing.html", "CONTRIBUTING.md", r"^# \w.*$"),
        ("files.html", "studies/README.md", r"`race\.json`"),
    ],
)
def test_what_is_written_elsewhere_is_shown(site, shown_on, file, words):
    shown = re.sub(r"<[^>]+>", "", (site / shown_on).read_text())
    written = re.findall(words, (ROOT / file).read_text(), re.MULTILINE)
    assert written
    for line in written:
        assert line.strip("#` ") in shown


def test_the_search_knows_every_page(site, pages):
    index = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    places = {entry["location"].partition("#")[0] for entry in index}
    names = {str(file.relative_to(site)) for file in pages} - {"404.html"}
    assert names - places == set()
