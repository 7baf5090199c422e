"""The site as it is built: nothing is missing in it, and nothing comes from elsewhere."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest

from autorecompute.schemas import DOCUMENTS, schema_of

LOADED = {"audio": "src", "iframe": "src", "img": "src", "script": "src", "source": "src", "video": "src"}
"""What a browser fetches by itself, by tag and attribute; links are looked at by their relation."""


class Resources(HTMLParser):
    """What a browser fetches for a page, and where its links go."""

    def __init__(self):
        super().__init__()
        self.fetched, self.links = [], []

    def handle_starttag(self, tag, attrs):
        """Keeps the addresses of one tag."""
        found = dict(attrs)
        if tag in LOADED and found.get(LOADED[tag]):
            self.fetched.append(found[LOADED[tag]])
        if tag == "link" and found.get("rel") not in {"canonical", "next", "prev"}:
            self.fetched.append(found["href"])
        if tag == "a" and "href" in found:
            self.links.append(found["href"])


@pytest.fixture(scope="module")
def site(root, tmp_path_factory):
    """The site, built as strictly as it is published."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(build, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def pages(site):
    """What each page loads and links to, by its file."""
    read = {}
    for file in sorted(site.rglob("*.html")):
        read[file] = Resources()
        read[file].feed(file.read_text())
    return read


def test_nothing_comes_from_elsewhere(pages):
    """No page has a reader's browser fetch anything that is not part of the site."""
    assert len(pages) > 20
    for file, page in pages.items():
        assert page.fetched, file
        for address in page.fetched:
            assert not urlsplit(address).netloc, (file, address)


def test_style_sheets_load_nothing_from_elsewhere(site):
    """Nor does a style sheet."""
    sheets = list(site.rglob("*.css"))
    assert sheets
    for sheet in sheets:
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet


def test_links_within_the_site_lead_to_a_file(site, pages):
    """Whatever a page links to on this site is there."""
    for file, page in pages.items():
        for link in (urlsplit(link) for link in page.links):
            if not link.scheme and link.path:
                folder = site if link.path.startswith("/") else file.parent
                assert (folder / link.path.lstrip("/")).exists(), (file, link.path)


def test_links_between_files_lead_to_a_file(page, links):
    """Read as files, without the site, pages link to files that are there."""
    for link in (urlsplit(link) for link in links(page)):
        if not link.scheme and link.path:
            assert (page.parent / link.path).exists(), link.path


def test_links_to_elsewhere_are_whole(pages):
    """A link to elsewhere is encrypted and names a host."""
    for page in pages.values():
        for link in (urlsplit(link) for link in page.links):
            assert link.scheme in {"", "https"}
            assert not link.scheme or "." in link.netloc


def test_every_option_is_on_the_site(site, options):
    """The page of verbs has all options that there are."""
    page = (site / "verbs.html").read_text()
    assert [option for option in sorted(options) if option not in page] == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_field_is_on_the_site(site, name):
    """The page of JSON has every field of what a verb prints, and a heading for the verb."""
    page = (site / "json.html").read_text()
    assert f'<h2 id="{name}">' in page
    assert [key for key in schema_of(name)["properties"] if f"<code>{key}</code>" not in page] == []


@pytest.mark.parametrize(
    ("shown_on", "file", "words"),
    [
        ("index.html", "docs/first-tuning.md", r"\A[\s\S]*?^(verdict: .*)$"),
        ("changelog.html", "CHANGELOG.md", r"^## \w.*$"),
        ("contributing.html", "CONTRIBUTING.md", r"^# \w.*$"),
        ("files.html", "studies/README.md", r"`race\.json`"),
    ],
)
def test_what_is_written_elsewhere_is_shown(site, root, shown_on, file, words):
    """Files from outside of the documentation's folder are pages, and the sample of a tuning is on the first."""
    shown = re.sub(r"<[^>]+>", "", (site / shown_on).read_text())
    written = re.findall(words, (root / file).read_text(), re.MULTILINE)
    assert written
    for line in written:
        assert line.strip("#` ") in shown


def test_the_search_knows_every_page(site, pages):
    """Each page can be found by searching, without a server that does it."""
    places = {entry["location"].partition("#")[0] for entry in _index(site)}
    names = {str(file.relative_to(site)) for file in pages} - {"404.html"}
    assert names - places == set()


def _index(site):
    return json.loads((site / "search" / "search_index.json").read_text())["docs"]
