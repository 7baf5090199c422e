"""The backend in its house: chosen by name or by what a script uses, measured by live bytes, and given out."""

import dataclasses
import importlib
import subprocess
import sys

import pytest
import torch

import autorecompute
from autorecompute import codec
from autorecompute.backends import registry
from autorecompute.backends.auto import AutoBackend
from autorecompute.backends.torch import controller
from autorecompute.backends.torch.extra import OptionStep, Part, Steps, TorchDetection
from autorecompute.backends.torch.live import StepLive, tensors_of
from autorecompute.backends.torch.worker import TorchBackend
from autorecompute.measurement import Outcome
from autorecompute.plans import Choice, Config
from tiny_models import make


def test_importing_the_package_brings_no_torch():
    """Nor does the controller's half; what a script may call is there all the same."""
    code = (
        "import sys, autorecompute, autorecompute.backends.torch.controller; "
        "print('torch' in sys.modules, callable(autorecompute.apply))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"


def test_a_script_may_apply_what_nobody_names(monkeypatch):
    """Without a path and without a variable nothing happens."""
    monkeypatch.delenv(controller.VARIABLES[0], raising=False)
    autorecompute.apply(make("gpt2").model)


def test_every_backend_has_what_the_registry_asks_for():
    """One trains all scripts that use no other, and each has both halves."""
    backends = registry.controllers()
    assert [backend.NAME for backend in backends if not backend.USED_BY] == ["torch"]
    for backend in backends:
        assert backend.PROFILES or callable(backend.memory_of)
        assert importlib.util.find_spec(backend.DIAGNOSIS)


def test_a_script_that_names_its_training_system_gets_it(tmp_path):
    """By the module that it imports; any other script gets the plain one until something else is imported."""
    script = tmp_path / "train.py"
    script.write_text("import torch")
    assert isinstance(registry.worker(registry.AUTO, tmp_path, script), AutoBackend)
    assert isinstance(registry.worker("torch", tmp_path, script), TorchBackend)
    script.write_text("from onnxruntime.training.ortmodule import ORTModule")
    pytest.importorskip("onnxruntime")
    assert type(registry.worker(registry.AUTO, tmp_path, script)).__name__ == "OrtModuleBackend"


class Stand:
    """A backend that another module brings in."""

    USED_BY, NAME = "a_system_that_is_imported", "stand"

    def __init__(self):
        self.listener, self.is_out = None, False

    def install(self, listener, *, wrap):
        """Keeps whom to tell."""
        assert not wrap
        self.listener = listener

    def uninstall(self):
        """Taken out."""
        self.is_out = True

    def import_hooks(self, *, wrap):
        """None."""
        del wrap
        return ()

    def classify(self, error):
        """Its own word."""
        return Outcome.CRASH, str(error)


class Told:
    """A listener that says when a session is there."""

    target_batch = 4

    def __init__(self):
        self.sessions = []

    def on_session(self, detect):
        """Keeps what was detected."""
        self.sessions.append(detect())
        return Config()


@pytest.fixture
def imported(tmp_path, monkeypatch):
    """A module of the other system's name that can be imported, and is forgotten in the end."""
    (tmp_path / f"{Stand.USED_BY}.py").write_text("MADE = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = list(sys.meta_path)
    yield lambda: importlib.import_module(Stand.USED_BY)
    sys.meta_path[:] = before
    sys.modules.pop(Stand.USED_BY, None)


def test_the_system_that_a_script_imports_is_brought_in_and_the_first_to_train_stays(imported):
    """Until one of them trains both wait; then the plain one is taken out, or the other one is not heard."""
    plain, other, told = Stand(), Stand(), Told()
    auto = AutoBackend(plain, {Stand.USED_BY: other}, lambda _: other)
    auto.install(told, wrap=False)
    assert other.listener is None
    assert imported().MADE
    other.listener.on_session(lambda: "the other's")
    assert plain.is_out
    assert told.sessions == ["the other's"]
    plain.listener.on_session(lambda: "too late")
    assert told.sessions == ["the other's"]
    assert auto.classify(ValueError("no")) == (Outcome.CRASH, "no")


def test_a_script_that_imports_a_system_and_trains_without_it_is_tuned_as_it_is(imported):
    """The plain one was first, and what is imported later is not installed."""
    plain, other, told = Stand(), Stand(), Told()
    auto = AutoBackend(plain, {Stand.USED_BY: other}, lambda _: other)
    auto.install(told, wrap=False)
    plain.listener.on_session(lambda: "plain")
    imported()
    assert other.listener is None
    assert told.sessions == ["plain"]


def test_live_bytes_are_those_of_the_step_between_start_and_stop():
    """Whatever was alive before does not count, and a recomputed step has less alive."""
    training = make("gpt2", batch=8)
    optimizer = torch.optim.AdamW(training.model.parameters())
    meter = StepLive(lambda: tensors_of(training.model, [optimizer]))

    def step():
        meter.start()
        training.loss(training.model, training.batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        return meter.stop()

    step()
    plain = step()
    assert step() == plain
    training.model.config.use_cache = False
    training.model.gradient_checkpointing_enable({"use_reentrant": False})
    assert step() < 0.8 * plain


def test_an_offer_says_what_the_environment_switches_on(tmp_path, make_detection):
    """What the model offers of it takes effect, and the rest is told."""
    detection = make_detection()
    (known,) = detection.plans[0].choices
    file = tmp_path / "plans.json"
    config = Config(frozenset({known, Choice("nowhere", "drop")}))
    rendered = controller.render(config, versions={}, folder=tmp_path)
    file.write_text(rendered.files[file])
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
