import dataclasses
import io
from html.parser import HTMLParser

import pytest
from rich.console import Console

from autorecompute.figures import Figures, RaceEnd, Ranking
from autorecompute.measurement import GradientCheck, Outcome, Prediction
from autorecompute.reports.answer import print_result, print_trials
from autorecompute.reports.page import make_page
from autorecompute.result import Transfer
from autorecompute.studies.folder import StudyFolder
from autorecompute.units import MIB
from stand_ins.emitted import rendered
from stand_ins.studies import COMMAND, keep_study

VOID = {"meta", "img", "br", "hr", "link", "input"}
LIMIT_BYTES = 650 * MIB


class Page(HTMLParser):
    """A page as a browser would read it: its elements, and its text."""

    def __init__(self, html):
        super().__init__()
        self.html, self.elements, self.texts, self._open = html, [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        if not {"script", "style"}.intersection(self._open):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        return [attributes[name] for _, attributes in self.elements if name in attributes]

    @property
    def logs(self):
        return [link for link in self.values("href") if link.endswith("output.log")]


@pytest.fixture
def lines_of():
    def lines_of(show, *arguments, width=120):
        console = Console(file=io.StringIO(), width=width, highlight=False)
        show(*arguments, console)
        return console.file.getvalue().splitlines()

    return lines_of


@pytest.fixture
def show(lines_of, make_result):
    def show(result=None, trials=(), *, width=120, folder=None):
        result, folder = result or make_result(), folder or StudyFolder("bert")
        return lines_of(print_result, result, trials, folder, rendered(result, folder.best), width=width)

    return show


@pytest.fixture
def table(lines_of):
    return lambda trials, width=200: lines_of(print_trials, trials, width=width)


def keeping_in(root, make_detection):
    def keep(trials=(), result=None, *, name="bert", batch=32, command=COMMAND, space=None, **found):
        kept = {"name": name, "batch": batch, "command": command, "trials": trials, "result": result}
        return keep_study(root, make_detection(space, **found), limit_bytes=LIMIT_BYTES, **kept)

    return keep


@pytest.fixture
def keep(tmp_path, make_detection):
    return keeping_in(tmp_path / "studies", make_detection)


def read_page(folder, file=None):
    return Page(make_page(folder, file or folder.path / "report.html"))


@pytest.fixture
def read():
    """The page of a study, read; made for a file in the study's folder, or for another."""
    return read_page


@pytest.fixture(scope="session")
def known(tmp_path_factory, make_detection, trials, answer):
    """A study that has everything, to be looked at."""
    return keeping_in(tmp_path_factory.mktemp("studies"), make_detection)(trials, answer)


@pytest.fixture(scope="session")
def page(known):
    return read_page(known)


@pytest.fixture(scope="session")
def expected():
    return Prediction(
        peak_bytes=512 * MIB, peak_low=500 * MIB, peak_high=520 * MIB, step=1.25, step_low=1.2, step_high=1.3, fits=0.9
    )


@pytest.fixture(scope="session")
def trials(make_trial, make_space, list_configs, expected):
    """Twelve configs with predictions, some over the limit, one out of memory."""
    configs = list_configs(make_space())[:12]
    found = [
        dataclasses.replace(
            make_trial(
                config, number=n, reference_seconds=0.5, peak_bytes=(700 - 8 * n) * MIB,
                step_seconds=(0.5 + n / 100, 0.52 + n / 100),
                outcome=Outcome.OK if n > 6 else Outcome.OVER_LIMIT, marks=("host busy",) if n == 3 else (),
            ),
            prediction=expected,
        )
        for n, config in enumerate(configs)
    ]  # fmt: skip
    return [*found, make_trial(configs[1], number=12, outcome=Outcome.OOM, message="no memory left")]


@pytest.fixture(scope="session")
def answer(make_result, trials):
    return make_result(
        trials[9].config,
        of_best={
            "relative_low": 0.85,
            "relative_high": 0.9,
            "limit_bytes": LIMIT_BYTES,
            "ranking": Ranking(end=RaceEnd.TIE, rounds=8, confidence=0.99, rivals=("blocks.*/gelu",)),
            "gradients": GradientCheck(agrees=True, worst=0.0, steps=3),
        },
        rival=Figures(outcome=Outcome.OK, batch=18, samples_per_second=44.4, peak_bytes=600 * MIB),
        warnings=("train.py:12 runs the model twice",),
        transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        raced={trials[8].config.hash: 0.91},
    )
