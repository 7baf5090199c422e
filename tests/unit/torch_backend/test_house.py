import dataclasses
import importlib
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from torch import nn

from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.backends.registry import AutoBackend
from autorecompute.backends.torch import controller
from autorecompute.backends.torch.forecast.records import OptionStep, Part, Steps, TorchDetection
from autorecompute.backends.torch.worker import TorchBackend, surveyed
from autorecompute.measurement import Outcome
from autorecompute.plans import Choice, Config


def test_the_package_and_the_controllers_half_bring_no_torch():
    code = (
        "import sys, autorecompute, autorecompute.backends.torch.controller as _; print(callable(autorecompute.apply), "
        "callable(autorecompute.auto), *{'torch', 'transformers', 'lightning'}.intersection(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"


def test_what_trains_decides_unless_a_backend_is_named(tmp_path):
    assert isinstance(registry.worker(registry.AUTO, tmp_path), AutoBackend)
    assert isinstance(registry.worker("torch", tmp_path), TorchBackend)


IMPORTED = "a_system_that_is_imported"


class Stand:
    listener, is_out, IMPORT_HOOK = None, False, ""

    def install(self, listener):
        self.listener = listener

    def uninstall(self):
        self.is_out = True

    def classify(self, error):
        return Outcome.CRASH, str(error)

    def train(self, name):
        self.listener.on_session(lambda: name)


@pytest.fixture
def two_systems(tmp_path, monkeypatch):
    """The plain system, one whose module can be imported, both in one, what trained, and the means to import it."""
    (tmp_path / f"{IMPORTED}.py").write_text("MADE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    plain, other, trained = Stand(), Stand(), []
    auto = AutoBackend(plain, {IMPORTED: other}, lambda _: other)
    on_session = lambda detect: trained.append(detect()) or Config()  # noqa: E731
    auto.install(SimpleNamespace(on_session=on_session, replaces_checkpointing=False, is_exact=False, longest=None))
    yield plain, other, auto, trained, lambda: importlib.import_module(IMPORTED)
    sys.meta_path[:] = before
    sys.modules.pop(IMPORTED, None)


def test_the_system_that_a_script_imports_is_brought_in_and_the_first_to_train_stays(two_systems):
    plain, other, auto, trained, bring = two_systems
    assert other.listener is None
    assert bring().MADE
    other.train("the other")
    assert plain.is_out
    plain.train("too late")
    assert trained == ["the other"]
    assert auto.classify(ValueError("no")) == (Outcome.CRASH, "no")


def test_a_script_that_imports_a_system_after_it_has_trained_without_it_is_tuned_as_it_is(two_systems):
    plain, other, _, trained, bring = two_systems
    plain.train("plain")
    bring()
    assert other.listener is None
    assert trained == ["plain"]


def test_what_a_survey_leaves_in_the_memory_of_the_host_is_weighed():
    """What it has let go of is not, and on another device the host's memory is nobody's concern."""
    kept = []

    def survey():
        np.ones(80 * 10**6, dtype=np.uint8)
        kept.append(np.ones(50 * 10**6, dtype=np.uint8))
        return None, "no reason"

    told, left_bytes = surveyed(nn.Linear(2, 2), survey)
    assert told == (None, "no reason")
    assert left_bytes == pytest.approx(50 * 10**6, rel=0.1)
    assert surveyed(nn.Linear(2, 2, device="meta"), survey) == (told, 0)


def test_an_offer_says_what_the_environment_switches_on(tmp_path, make_detection):
    detection = make_detection()
    (known,) = detection.plans[0].choices
    rendered = controller.render(Config(frozenset({known, Choice("nowhere", "drop")})), versions={}, folder=tmp_path)
    ((file, text),) = rendered.files.items()
    file.write_text(text)
    offer = controller.offer(detection, rendered.variables, {"batch": 8})
    assert offer.is_on
    assert offer.config == Config(frozenset({known}))
    assert offer.unknown == ("nowhere:drop",)
    assert offer.problems == ("the model offers no plan nowhere:drop",)
    assert not controller.offer(detection, {}, {"batch": 8}).is_on


def test_an_offer_says_which_plans_no_forecast_knows(make_detection):
    """Where time for fake steps ran out, the plans that none was run with are named, and no others."""
    detection = make_detection()
    known, *others = [choice for plan in detection.plans for choice in plan.choices]
    step = OptionStep(site=known.site, option=known.option, units=((0,),), parts=(), change=(), highest=(), work=0.0)
    part = Part(phase="forward", name="", owner=0, change=1, highest=1)
    steps = Steps(batch=8, parts=(part,), options=(step,), later_bytes=0, has_own_loss=True)
    extra = codec.to_plain(TorchDetection(steps=steps))
    (note,) = controller.offer(dataclasses.replace(detection, extra=extra), {}, {"batch": 8}).notes
    assert all(str(other) in note for other in others)
    assert str(known) not in note
