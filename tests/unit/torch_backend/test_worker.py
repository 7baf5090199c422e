"""The worker's half: which module is tuned, what it offers, and that looking and switching leave training as it is."""

import copy
import gc
import itertools
import os

import pytest
import torch
from torch import Tensor, nn

from autorecompute.backends.torch import applying, live
from autorecompute.backends.torch.controller import memory_of
from autorecompute.backends.torch.extra import TorchDetection
from autorecompute.backends.torch.plans_file import VARIABLE, PlansFile
from autorecompute.backends.torch.refusals import RefusedModelError
from autorecompute.backends.torch.storages import tensors_in
from autorecompute.backends.torch.worker import TorchBackend
from autorecompute.errors import UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from tiny_models import Training, differences, make


class Listener:
    """Answers with a config, and keeps what it was told."""

    def __init__(self, config, *, looks, batch):
        self.config, self.looks, self.target_batch = config, looks, batch
        self.several = 0
        self.detections, self.batches, self.checks, self.wanted = [], [], [], []

    fake_card, fake_ranks, on_failure = None, 0, None

    def on_session(self, detect):
        """The config to begin with."""
        if self.looks:
            self.detections.append(detect())
        return self.config

    def on_several_models(self):
        """Counts them."""
        self.several += 1

    def on_fault(self, error):
        """The test is to see it."""
        raise error

    def on_forward(self, batch, check):
        """Compares what is wanted."""
        self.batches.append(batch)
        self.checks += [check(config) for config in self.wanted if self.detections]


@pytest.fixture
def begin(monkeypatch):
    """Follows this process as a worker does, and stops in the end."""
    followed = []
    monkeypatch.setattr(applying._Elsewhere, "decides", False)
    # Tests that ran before in this process may have compiled something, which these do not.
    monkeypatch.setattr(live, "is_compiling", lambda: False)

    def follow(config=None, *, looks=True, batch=None):
        listener, backend = Listener(config or Config(), looks=looks, batch=batch), TorchBackend()
        backend.install(listener)
        followed.append(backend)
        return listener, backend

    yield follow
    for backend in followed:
        backend.uninstall()


def train(training, steps=2, between=lambda: None):
    """Some steps from the same random numbers each time; what is trained in the end."""
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(training.model.parameters())
    for _ in range(steps):
        training.loss(training.model, training.batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        between()
    return dict(training.model.state_dict()) | {"next": torch.rand(1)}


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_training_goes_on_bit_for_bit_whatever_is_switched(name, begin):
    """Detection with all its fake steps, each preset in turn and gradient checks leave weights and buffers equal."""
    training = make(name)
    expected = train(copy.deepcopy(training), steps=6)
    listener, backend = begin()
    presets = []

    def switch():
        if not presets:
            presets.extend(listener.detections[0].space.presets.values())
            listener.wanted = presets[-2:]
        backend.end_step()
        backend.switch(presets.pop())

    assert differences(train(training, steps=6, between=switch), expected) == []
    assert all(check.agrees and check.worst == 0 and check.steps for check in listener.checks)
    assert len(listener.checks) == 2 * 5
    assert listener.batches == [4] * 6


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_a_check_tells_what_a_whole_step_takes(name, begin):
    """The same in every step of a training, and what was forecast before the first one."""
    listener, backend = begin()
    configs = []

    def between():
        if not configs:
            configs.extend(dict.fromkeys(listener.detections[0].space.presets.values()))
            listener.wanted = configs
        backend.end_step()

    train(make(name), steps=3, between=between)
    (detection,) = listener.detections
    memory = memory_of(detection)
    forecasts = [memory.forecast(config, detection.dims).live_bytes for config in configs]
    assert [check.step_bytes for check in listener.checks] == forecasts * 2


def test_a_whole_step_is_looked_at_without_comparing_gradients(begin):
    """Nothing of the model runs on tensors with values."""
    listener, backend = begin()
    ran, looked = [], []

    def on_forward(batch, check):
        del batch
        if listener.detections:
            ran.clear()
            looked.extend([check(listener.detections[0].space.presets["blocks"], compares=False), Tensor in ran])

    listener.on_forward = on_forward
    training = make("gpt2")
    training.model.register_forward_hook(lambda *call: ran.extend(map(type, tensors_in(call[2]))))
    train(training, between=backend.end_step)
    check, has_run = looked
    assert (check.agrees, check.steps, has_run) == (True, 0, False)
    assert check.step_bytes > 0


class Squares(nn.Module):
    """Two layers, and a loss of its own."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 8))

    def forward(self, x):
        """The mean of the squares."""
        return self.layers(x).square().mean()


def test_a_weight_that_is_returned_gets_no_hooks(begin):
    """They would stay, one more with every step: CLIP returns its scale."""
    _, backend = begin()
    model = Squares()
    model.register_forward_hook(lambda *call: (call[-1], model.layers[0].weight))
    train(Training(model, {"x": torch.rand(4, 256)}, lambda model, batch: model(**batch)[0]), between=backend.end_step)
    assert not model.layers[0].weight._backward_hooks


@pytest.mark.parametrize("is_new", [False, True], ids=["the same batch", "a new batch from a data set"])
def test_live_bytes_are_what_fake_steps_take(begin, is_new):
    """A batch that takes the place of the last one is nothing more, and what it is a part of was there before."""
    torch.manual_seed(0)
    listener, backend = begin()
    model, data = Squares(), torch.randn(640, 256)
    optimizer = torch.optim.SGD(model.parameters())
    x = torch.stack(list(data[:64]))
    found = []
    for step in range(3):
        meter = backend.live_meter()
        meter.start()
        if is_new:
            x = torch.stack(list(data[64 * step : 64 * (step + 1)]))
        model(x).backward()
        found.append(meter.stop())
        optimizer.step()
        optimizer.zero_grad()
    steps = TorchDetection.of(listener.detections[0]).steps
    before = [0, *itertools.accumulate(part.change for part in steps.parts)]
    forecast = max(first + part.highest for first, part in zip(before, steps.parts, strict=False))
    assert found[-1] == pytest.approx(forecast, abs=8)


def test_the_config_of_the_answer_is_on_in_the_first_step(begin):
    """The first forward after the detection is recomputed already."""
    listener, backend = begin(Config.parse(["transformer.h.*:checkpoint"]))
    training = make("gpt2")
    train(training, steps=1)
    effects = {effect.path for tuned in backend._tuned.values() for effect in tuned.board.effects}
    assert effects == {"transformer.h.0", "transformer.h.1"}
    assert listener.detections[0].dims == {"batch": 4, "sequence": 32}


def test_steps_are_forecast_at_the_target_before_the_script_gives_it(begin):
    """With a target of twice the batch the forecast is that of a detection at twice the batch."""
    small, backend = begin(batch=8)
    train(make("llama"), steps=1)
    backend.uninstall()
    large, _ = begin()
    train(make("llama", batch=8), steps=1)
    told, expected = (TorchDetection.of(listener.detections[0]).steps for listener in (small, large))
    assert told.batch == 8
    assert told.parts == expected.parts
    assert told.options == expected.options


def test_batches_of_several_lengths_are_told(begin):
    """Peaks hold for the longest that was measured; a last batch that is smaller is no other length."""
    _, backend = begin()
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = []
    for batch, length in ((4, 6), (2, 6), (4, 9), (4, 3)):
        model(torch.zeros(batch, length, dtype=torch.int64)).sum().backward()
        optimizer.step()
        told.append(backend.end_step())
    assert told[:2] == [(), ()]
    assert "a sequence of 6 to 9" in told[2][0]
    assert "a sequence of 3 to 9" in told[3][0]


class Pair(nn.Module):
    """Something that an optimizer trains a part of."""

    def __init__(self):
        super().__init__()
        self.frozen, self.trained = nn.Linear(4, 4).requires_grad_(requires_grad=False), nn.Linear(4, 4)

    def forward(self, x):
        """Both."""
        return self.trained(self.frozen(x))


def test_evaluation_and_models_that_nobody_trains_are_not_followed(begin):
    """Only a training call of a module with an optimizer's parameters counts, and is open until its gradients come."""
    listener, backend = begin()
    model, teacher = Pair(), Pair()
    optimizer = torch.optim.SGD(model.trained.parameters(), lr=0.1)
    teacher(torch.ones(3, 4))
    with torch.no_grad():
        model(torch.ones(3, 4))
    model.eval()
    model(torch.ones(3, 4))
    assert not listener.detections
    model.train()
    loss = model(torch.ones(3, 4)).sum()
    assert backend.has_open_forward
    loss.backward()
    assert not backend.has_open_forward
    optimizer.step()
    assert listener.batches == [3]


def test_another_model_that_trains_is_left_as_it_is_and_a_twin_is_not(begin):
    """A second model of another kind gets no config and is not counted; one that is built alike gets the first's."""
    listener, backend = begin(Config.parse(["transformer.h.*:checkpoint"]))
    models = [make("gpt2"), make("resnet"), make("gpt2")]
    for training in models:
        train(training, steps=1)
    assert len(listener.detections) == 1
    assert listener.batches == [4, 4]
    assert len(backend._tuned) == 2
    del models, training
    gc.collect()
    assert not backend._tuned


def test_a_watched_process_trains_under_what_the_environment_names(begin, tmp_path, monkeypatch):
    """Nobody asks what there is; the file is applied, and a script that applies another one is not heard."""
    file = tmp_path / "plans.json"
    file.write_text(PlansFile(config=Config.parse(["transformer.h.*.mlp:checkpoint:1"])).text)
    monkeypatch.setenv(VARIABLE, str(file))
    _, backend = begin(looks=False)
    training = make("gpt2")
    applying.apply(training.model, tmp_path / "no such file")
    train(training, steps=1)
    twin = make("gpt2")
    train(twin, steps=1)
    assert len(backend._tuned) == 2
    for tuned in backend._tuned.values():
        assert {effect.path for effect in tuned.board.effects} == {"transformer.h.0.mlp"}


def test_a_watched_process_without_plans_is_left_alone(begin):
    """Nothing is looked at."""
    assert VARIABLE not in os.environ
    _, backend = begin(looks=False)
    train(make("gpt2"), steps=1)
    assert not backend._tuned


def test_a_model_on_several_devices_is_refused(begin):
    """The memory of one alone would be measured."""
    begin()
    training = make("gpt2")
    training.model.elsewhere = nn.Linear(2, 2, device="meta")
    with pytest.raises(RefusedModelError, match="several devices"):
        train(training, steps=1)


def test_a_refused_model_ends_the_script_with_its_sentence(begin):
    """What another compiler than inductor keeps is not known, so a model that it runs is refused."""
    _, backend = begin()
    model = Pair()
    optimizer = torch.optim.SGD(model.trained.parameters(), lr=0.1)
    model.compile(backend="eager")
    with pytest.raises(RefusedModelError) as raised:
        model(torch.ones(2, 4))
    del optimizer
    outcome, sentence = backend.classify(raised.value)
    assert outcome is Outcome.EXPORT_ERROR
    assert "another backend than inductor" in sentence


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), Outcome.OOM),
        (torch.OutOfMemoryError("CUDA out of memory."), Outcome.OOM),
        (MemoryError(), Outcome.OOM),
        (UsageError("These plans are not for this model."), Outcome.SCRIPT_ERROR),
        (ValueError("one\ntwo"), Outcome.SCRIPT_ERROR),
    ],
)
def test_errors_are_told_by_what_ended_the_script(error, outcome):
    """Memory in whatever words, and a sentence of ours as it is."""
    found, sentence = TorchBackend().classify(error)
    assert found is outcome
    assert str(error).splitlines()[-1:] == [] or str(error).splitlines()[-1] in sentence


def test_a_cards_paragraph_about_its_memory_is_one_figure():
    """CUDA tells of the whole card, on one line."""
    text = (
        "CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 69.47 GiB "
        "is free. 9.00 GiB allowed; Of the allocated memory 8.66 GiB is allocated by PyTorch."
    )
    found = TorchBackend().classify(torch.OutOfMemoryError(text))
    assert found == (Outcome.OOM, "out of memory: it asked for 86.00 MiB more")


def test_wrong_gradients_are_found(begin):
    """A module that computes otherwise when it runs again does not agree, and the parameter is named."""

    class Drifting(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.calls = nn.Linear(4, 4), itertools.count()

        def forward(self, x):
            return self.inner(x * torch.ones(1).fill_(next(self.calls))).relu()

    listener, _ = begin()
    model = nn.Sequential(nn.Linear(4, 4), Drifting(), nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    listener.wanted = [Config.parse(["1:checkpoint"])]
    model(torch.ones(8, 4))
    model(torch.ones(8, 4))
    del optimizer
    (check,) = listener.checks
    assert not check.agrees
    assert check.worst > 0
    assert check.parameter


def test_a_model_that_cannot_be_run_without_values_has_plans_all_the_same(begin):
    """What it does to fake tensors is its own affair: no peak is forecast, and the sentence says why."""

    class Looking(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4))

        def forward(self, x):
            if type(x).__name__ == "FakeTensor":
                raise KeyError("no value")
            return self.inner(x)

    listener, backend = begin()
    model = Looking()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(64, 4)).sum().backward()
    optimizer.step()
    (detection,) = listener.detections
    extra = TorchDetection.of(detection)
    assert detection.plans
    assert extra.steps is None
    assert "fake tensors" in extra.no_steps
    backend.switch(detection.space.all_on)
    model(torch.ones(64, 4)).sum().backward()
