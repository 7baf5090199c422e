"""Studies as a tuning keeps them, and their pages as a browser reads them."""

import dataclasses
from html.parser import HTMLParser

import pytest

from autorecompute.figures import Figures
from autorecompute.measurement import GradientCheck, Outcome
from autorecompute.prediction import Prediction
from autorecompute.ranking import RaceEnd, Ranking
from autorecompute.reports.html import make_page
from autorecompute.result import Transfer
from autorecompute.studies import Problem, Sizes, StudyFolder
from autorecompute.studies.problem import SEVERAL_BATCHES
from autorecompute.studies.storage import TrialStore
from autorecompute.units import MIB

VOID = {"meta", "img", "br", "hr", "link", "input"}
LIMIT_BYTES = 650 * MIB


class Page(HTMLParser):
    """A page as a browser would read it: its elements, and its text."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.texts, self._open = [], [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        """Closes it, and what was left open in it."""
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data):
        """Notes what is to be read."""
        if not {"script", "style"}.intersection(self._open):
            self.texts.append(data)

    @property
    def text(self):
        """All that is to be read, in single spaces."""
        return " ".join(" ".join(self.texts).split())

    def values(self, name):
        """All values of an attribute."""
        return [attributes[name] for _, attributes in self.elements if name in attributes]


@pytest.fixture
def keep(tmp_path, make_detection):
    """Keeps a study as a tuning does: begun, with its trials and, where there is one, its answer."""

    def keep(trials=(), result=None, *, name="bert", batch=32, command=("python", "train.py"), space=None, **found):
        detection = make_detection(space, **found)
        folder = StudyFolder(name, tmp_path)
        folder.prepare()
        problem = dataclasses.replace(Problem.of(detection, LIMIT_BYTES), batch=batch)
        folder.begin(problem, list(command), Sizes.of(detection))
        if batch != SEVERAL_BATCHES:
            store = TrialStore(folder.database, name, detection.space, LIMIT_BYTES)
            for trial in trials:
                store.add(trial)
                folder.keep_trial(trial, list(command), {}, "output\n")
        if result is not None:
            folder.finish(dataclasses.replace(result, study=name))
        return folder

    return keep


@pytest.fixture
def read():
    """The page of a study, read; made for a file in the study's folder, or for another."""
    return lambda folder, file=None: Page(make_page(folder, file or folder.path / "report.html"))


@pytest.fixture
def trials(make_trial, make_space, list_configs):
    """Twelve configs with predictions, some over the limit, one out of memory."""
    configs = list_configs(make_space())[:12]
    expected = Prediction(
        peak_bytes=640 * MIB, peak_low=600 * MIB, peak_high=700 * MIB, step=1.1, step_low=1.0, step_high=1.2, fits=0.8
    )
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
    lost = make_trial(configs[1], number=12, outcome=Outcome.OOM, message="no memory left")
    return [*found, lost]


@pytest.fixture
def answer(make_result, trials):
    """An answer with all there can be to tell."""
    result = make_result(trials[9].config)
    best = dataclasses.replace(
        result.best,
        relative_low=0.85,
        relative_high=0.9,
        limit_bytes=LIMIT_BYTES,
        ranking=Ranking(end=RaceEnd.TIE, rounds=8, confidence=0.99, rivals=("blocks.*/gelu",)),
        gradients=GradientCheck(agrees=True, worst=0.0, steps=3),
    )
    return dataclasses.replace(
        result,
        best=best,
        rival=Figures(outcome=Outcome.OK, batch=18, samples_per_second=44.4, peak_bytes=600 * MIB),
        warnings=("train.py:12 runs the model twice",),
        transferred_from=Transfer(study="other", differences=("batch 32, not 16",)),
        raced={trials[8].config.hash: 0.91},
    )
