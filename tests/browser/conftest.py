"""A browser, and pages of studies that are there to be looked at."""

import dataclasses
import gzip
import json
import shutil
from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from autorecompute import codec
from autorecompute.measurement import Trial
from autorecompute.plans import Space
from autorecompute.reports.page import make_page
from autorecompute.studies import StudyFolder
from autorecompute.studies.storage import TrialStore

RECORDED = Path(__file__).parent / "recorded"
CHROMIUM = shutil.which("chromium")
HOSTILE = "<script>document.title='owned'</script> </style> \"'><img src=x onerror=\"document.title='owned'\"> مرحبا "
LONG = "A" * 400
PATIENCE_MS = 600_000
"""A machine that others keep busy is no failure."""


class Recorded:
    def __init__(self, root):
        self._root = root
        self.trials = codec.from_plain(json.loads((RECORDED / "trials.json").read_text()), list[Trial])

    def copy(self, name, change=lambda trials, _: trials):
        """A study with the recorded trials, or with what ``change`` makes of them and of the plain answer."""
        folder = StudyFolder(name, self._root)
        folder.prepare()
        result = json.loads((RECORDED / "result.json").read_text())
        trials = change(list(self.trials), result)
        shutil.copy(RECORDED / "study.json", folder.path)
        folder.write("study.json", json.loads((RECORDED / "study.json").read_text()) | {"study": name})
        folder.write("result.json", result)
        (folder.path / "analysis.json").write_bytes(gzip.decompress((RECORDED / "analysis.json.gz").read_bytes()))
        # Without a parameter for each plan, which a page does not look at, trials are kept twice as fast.
        store = TrialStore(folder.database, name, Space(plans=()), folder.head().problem.limit_bytes)
        for trial in trials:
            store.add(trial)
        for trial in trials[:30]:
            folder.keep_trial(trial, ["python", "train.py"], {}, f"output of trial {trial.number}\n")
        page = folder.path / "report.html"
        page.write_text(make_page(folder, page), encoding="utf-8")
        return page


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    return Recorded(tmp_path_factory.mktemp("studies"))


@pytest.fixture(scope="session")
def report(recorded):
    return recorded.copy("bert")


@pytest.fixture(scope="session")
def hostile_report(recorded):
    def spoil(trials, plain):
        plain["command"] = ["python", HOSTILE + LONG]
        plain["warnings"] = [HOSTILE, LONG]
        plain["device"]["name"] = HOSTILE
        plain["best"]["description"] = LONG + HOSTILE
        return [
            dataclasses.replace(
                trial,
                description=HOSTILE + LONG,
                reason=HOSTILE,
                measurement=dataclasses.replace(trial.measurement, message=LONG, marks=(HOSTILE,)),
            )
            for trial in trials
        ]

    return recorded.copy("a <b> & 'c' עברית", spoil)


@pytest.fixture(scope="session")
def chromium():
    assert CHROMIUM, "these tests look at pages in a browser: apt-get install chromium"
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    contexts = []

    def visit(file, **settings):
        context = chromium.new_context(**settings)
        context.set_default_timeout(PATIENCE_MS)
        contexts.append(context)
        page = context.new_page()
        page.requested, page.complaints = [], []
        page.on("request", lambda request: page.requested.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(file.as_uri())
        return page

    yield visit
    for context in contexts:
        context.close()
