import copy
import functools
import gc
import itertools
import os
import threading

import pytest
import torch
from torch import Tensor, nn

from autorecompute.backends.torch.controller import memory_of
from autorecompute.backends.torch.fake import live
from autorecompute.backends.torch.find.refusals import RefusalError
from autorecompute.backends.torch.find.storages import tensors_in
from autorecompute.backends.torch.forecast.plans_file import VARIABLE, PlansFile
from autorecompute.backends.torch.forecast.records import TorchDetection
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.applying import Roots
from autorecompute.backends.torch.worker import TorchBackend
from autorecompute.errors import UsageError
from autorecompute.measurement import Outcome
from autorecompute.plans import Config
from tiny_models import Training, differences, make


class Listener:
    fake_card, fake_ranks, on_failure = None, 0, None
    replaces_checkpointing = is_exact = is_trial = is_surveyed = False
    longest = None

    def __init__(self, config, *, looks, batch):
        self.config, self.looks, self.target_batch = config, looks, batch
        self.detections, self.batches, self.checks, self.wanted = [], [], [], []

    def on_session(self, detect):
        if self.looks:
            self.detections.append(detect())
        return self.config

    def on_several_models(self):
        pass

    def on_fault(self, error):
        raise error

    def on_forward(self, batch, check):
        self.batches.append(batch)
        self.checks += [check(config) for config in self.wanted if self.detections]


@pytest.fixture
def begin(monkeypatch):
    """Follows this process as a worker does, and stops in the end."""
    followed = []
    monkeypatch.setattr(applying, "ELSEWHERE", threading.Event())
    # Tests that ran before in this process may have compiled something, which these do not.
    monkeypatch.setattr(live, "is_compiling", lambda: False)

    def follow(config=None, *, looks=True, batch=None, surveys=True):
        listener, backend = Listener(config or Config(), looks=looks, batch=batch), TorchBackend()
        listener.is_surveyed = not surveys
        backend.install(listener)
        followed.append(backend)
        return listener, backend

    yield follow
    for backend in followed:
        backend.uninstall()


def take_step(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def train(training, steps=2, between=lambda: None):
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(training.model.parameters())
    for _ in range(steps):
        take_step(optimizer, training.loss(training.model, training.batch))
        between()
    return dict(training.model.state_dict()) | {"next": torch.rand(1)}


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_training_goes_on_bit_for_bit_whatever_is_looked_at_switched_and_compared(name, begin):
    training = make(name)
    expected = train(copy.deepcopy(training), steps=4)
    listener, backend = begin()
    presets = []

    def switch():
        if not presets:
            presets.extend(listener.detections[0].space.presets.values())
            listener.wanted = presets[-1:]
        backend.end_step()
        backend.switch(presets.pop())

    assert differences(train(training, steps=4, between=switch), expected) == []
    assert listener.batches == [4] * 4
    assert all(check.agrees and check.worst == 0 and check.steps for check in listener.checks)
    (detection,) = listener.detections
    memory = memory_of(detection)
    forecasts = [memory.forecast(config, detection.dims).live_bytes for config in listener.wanted]
    assert [check.step_bytes for check in listener.checks] == forecasts * 3


def test_a_whole_step_is_looked_at_without_comparing_gradients_on_fake_tensors_alone(begin):
    listener, backend = begin()
    ran, looked = [], []

    def on_forward(_batch, check):
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


class Squares(nn.Sequential):
    def forward(self, x):
        return super().forward(x).square().mean()


def squares():
    return Squares(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 8))


def test_no_step_is_run_on_fake_tensors_where_an_earlier_process_told_what_steps_take(begin):
    listener, _ = begin(surveys=False)
    train(make("gpt2"), steps=1)
    (detection,) = listener.detections
    assert detection.plans
    assert TorchDetection.of(detection).steps is None


def squared(name, *, tells_form):
    """An operator with a kernel of its own in either pass, which may tell the form of what it gives."""

    @torch.library.custom_op(f"autorecompute_tests::{name}", mutates_args=())
    def square(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * x, x.sum(-1)

    @torch.library.custom_op(f"autorecompute_tests::{name}_backward", mutates_args={"into"})
    def go_back(x: Tensor, gradient: Tensor, into: Tensor) -> Tensor:
        into.copy_(2 * x * gradient)
        return x.sum(-1)

    def backward(ctx, gradient, _sums):
        (x,) = ctx.saved_tensors
        into = torch.empty_like(x)
        go_back(x, gradient, into)
        return into

    def setup_context(ctx, inputs, output):
        del output
        ctx.save_for_backward(*inputs)

    square.register_autograd(backward, setup_context=setup_context)
    if tells_form:
        square.register_fake(lambda x: (torch.empty_like(x), x.new_empty(x.shape[:-1])))
        go_back.register_fake(lambda x, _gradient, _into: x.new_empty(x.shape[:-1]))
    return square


def test_an_operator_that_tells_nothing_of_its_form_takes_on_fake_tensors_what_it_was_seen_to_give(begin):
    class Squares(nn.Module):
        def __init__(self, square):
            super().__init__()
            self.first, self.last, self.square = nn.Linear(32, 256), nn.Linear(256, 8), square

        def forward(self, x):
            return self.last(self.square(torch.nn.functional.gelu(self.first(x)))[0]).square().mean()

    told = []
    for name, tells_form in (("told", True), ("untold", False)):
        listener, backend = begin()
        model = Squares(squared(name, tells_form=tells_form))
        take_step(sgd(model), model(torch.ones(64, 32)))
        backend.uninstall()
        (detection,) = listener.detections
        memory = memory_of(detection)
        assert memory is not None, TorchDetection.of(detection).no_steps
        told.append(memory.forecast(Config(), detection.dims).live_bytes)
    assert told[1] == pytest.approx(told[0], rel=0.01)


def test_a_smaller_batch_is_cut_from_what_the_script_gives(begin):
    listener, backend = begin(surveys=False)
    training = make("gpt2")
    train(training, steps=1)
    for batch in (3, 4):
        assert backend.give_batch(batch)
        train(training, steps=1)
    assert not backend.give_batch(5)
    assert listener.batches == [4, 3, 4]


def test_a_weight_that_is_returned_gets_no_hooks(begin):
    """They would stay, one more with every step: CLIP returns its scale."""
    _, backend = begin(surveys=False)
    model = squares()
    model.register_forward_hook(lambda *call: (call[-1], model[0].weight))
    train(Training(model, {"x": torch.rand(4, 256)}, lambda model, batch: model(**batch)[0]), between=backend.end_step)
    assert not model[0].weight._backward_hooks


@pytest.mark.parametrize("is_new", [False, True], ids=["the same batch", "a new batch from a data set"])
def test_live_bytes_are_what_fake_steps_take(begin, is_new):
    """A batch that takes the place of the last one is nothing more, and what it is a part of was there before."""
    torch.manual_seed(0)
    listener, backend = begin()
    model, data = squares(), torch.randn(640, 256)
    optimizer = sgd(model)
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


def test_steps_are_forecast_at_the_target_as_by_a_detection_at_that_batch(begin):
    small, backend = begin(batch=8)
    train(make("encoder"), steps=1)
    backend.uninstall()
    large, _ = begin()
    train(make("encoder", batch=8), steps=1)
    told, expected = (TorchDetection.of(listener.detections[0]).steps for listener in (small, large))
    assert told.batch == 8
    assert (told.parts, told.options) == (expected.parts, expected.options)


def test_batches_of_several_lengths_are_told(begin):
    """Peaks hold for the longest that was measured; a last batch that is smaller is no other length."""
    _, backend = begin(surveys=False)
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = sgd(model)
    told = []
    for batch, length in ((4, 6), (2, 6), (4, 9), (4, 3)):
        take_step(optimizer, model(torch.zeros(batch, length, dtype=torch.int64)).sum())
        told.append(backend.end_step())
    assert told[:2] == [(), ()]
    assert "a sequence of 6 to 9" in told[2][0]
    assert "a sequence of 3 to 9" in told[3][0]


def test_evaluation_and_models_that_nobody_trains_are_not_followed(begin):
    listener, backend = begin(surveys=False)
    model, teacher = (nn.Sequential(nn.Linear(4, 4).requires_grad_(requires_grad=False), nn.Linear(4, 4)) for _ in "ab")
    optimizer = sgd(model[1])
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


def test_the_answer_is_on_in_the_first_step_of_the_first_model_and_its_twin_and_no_other_model_is_touched(begin):
    listener, backend = begin(Config.parse(["transformer.h.*:checkpoint"]), surveys=False)
    models = [make("gpt2"), make("resnet"), make("gpt2")]
    for training in models:
        train(training, steps=1)
    assert [detection.dims for detection in listener.detections] == [{"batch": 4, "sequence": 32}]
    assert listener.batches == [4, 4]
    effects = [{effect.path for effect in tuned.board.effects} for tuned in backend._tuned.values()]
    assert effects == [{"transformer.h.0", "transformer.h.1"}] * 2
    del models, training
    gc.collect()
    assert not backend._tuned


def test_a_watched_process_trains_under_what_the_environment_names_whatever_else_it_applies(
    begin, tmp_path, monkeypatch
):
    file = tmp_path / "plans.json"
    file.write_text(PlansFile(config=Config.parse(["transformer.h.*.mlp:checkpoint:1"])).text)
    monkeypatch.setenv(VARIABLE, str(file))
    _, backend = begin(looks=False)
    training, twin = make("gpt2"), make("gpt2")
    applying.apply(training.model, tmp_path / "no such file")
    train(training, steps=1)
    train(twin, steps=1)
    assert len(backend._tuned) == 2
    for tuned in backend._tuned.values():
        assert {effect.path for effect in tuned.board.effects} == {"transformer.h.0.mlp"}


def test_a_watched_process_without_plans_is_left_alone(begin):
    assert VARIABLE not in os.environ
    _, backend = begin(looks=False)
    train(make("gpt2"), steps=1)
    assert not backend._tuned


def test_a_model_that_cannot_be_tuned_ends_the_script_with_a_sentence(begin):
    _, backend = begin()
    model = squares()
    model.elsewhere = nn.Parameter(torch.ones(2, device="meta"))
    optimizer = sgd(model)
    with pytest.raises(RefusalError) as raised:
        model(torch.ones(2, 256))
    del optimizer
    outcome, sentence = backend.classify(raised.value)
    assert outcome is Outcome.EXPORT_ERROR
    assert "lies on several devices" in sentence


CARD_IS_FULL = (
    "CUDA out of memory. Tried to allocate 86.00 MiB. GPU 0 has a total capacity of 79.18 GiB of which 69.47 GiB is "
    "free. 9.00 GiB allowed; Of the allocated memory 8.66 GiB is allocated by PyTorch."
)


@pytest.mark.parametrize(
    ("error", "outcome", "sentence"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), "OOM", "9 bytes"),
        (torch.OutOfMemoryError(CARD_IS_FULL), "OOM", "out of memory: it asked for 86.00 MiB more"),
        (MemoryError(), "OOM", ""),
        (UsageError("These plans are not for this model."), "SCRIPT_ERROR", "These plans are not for this model."),
        (ValueError("one\ntwo"), "SCRIPT_ERROR", "ValueError: two"),
    ],
)
def test_errors_are_told_by_what_ended_the_script(error, outcome, sentence):
    found, told = TorchBackend().classify(error)
    assert found is Outcome[outcome]
    assert sentence in told
    assert "\n" not in told


def test_a_model_that_cannot_be_run_on_fake_tensors_has_plans_without_a_forecast(begin):
    class Looking(nn.Sequential):
        def forward(self, x):
            if type(x).__name__ == "FakeTensor":
                raise KeyError("no value")
            return super().forward(x)

    listener, backend = begin()
    model = Looking(nn.Linear(4, 32), nn.GELU(), nn.Linear(32, 4))
    optimizer = sgd(model)
    take_step(optimizer, model(torch.ones(64, 4)).sum())
    (detection,) = listener.detections
    extra = TorchDetection.of(detection)
    assert detection.plans
    assert extra.steps is None
    assert "fake tensors" in extra.no_steps
    backend.switch(detection.space.all_on)
    model(torch.ones(64, 4)).sum().backward()


def test_calls_that_the_code_hides_are_told_and_looked_at_from_the_next_step_on(begin):
    listener, backend = begin()
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)) for _ in range(3)))
    optimizer, by_another_name, told = sgd(model), model, []
    for step in range(2):
        listener.wanted = [Config()] * step
        loss = model(torch.ones(64, 32)).sum()
        listener.wanted = []
        take_step(optimizer, loss + by_another_name(torch.ones(64, 32)).sum())
        told.append(backend.end_step())
    (detection,), (check,) = listener.detections, listener.checks
    of_one_call = memory_of(detection).forecast(Config(), detection.dims)
    assert check.step_bytes - of_one_call.live_bytes >= 0.8 * of_one_call.stash_bytes
    assert all("calls the model 2 times" in sentence for (sentence,) in told)


def thawing():
    """A model of four blocks, of which an optimizer holds all and all but the last are frozen."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(4)))
    model[:3].requires_grad_(False)
    return model, torch.optim.AdamW(model.parameters())


def test_a_model_that_is_frozen_in_part_is_forecast_as_it_will_be_trained(begin):
    """The optimizer holds what is frozen."""
    listener, backend = begin()
    (model, optimizer), x = thawing(), torch.ones(64, 32)

    take_step(optimizer, model(x).sum())
    listener.wanted = [Config()]
    take_step(optimizer, model(x).sum())
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] * 12 + [True] * 4
    (told,) = backend.end_step()
    (detection,), (check,) = listener.detections, listener.checks
    forecast = memory_of(detection).forecast(Config(), detection.dims)
    assert "*" in {choice.site for plan in detection.plans for choice in plan.choices}
    assert "frozen" in told
    assert TorchDetection.of(detection).is_thawed
    assert check.agrees
    assert check.step_bytes == forecast.live_bytes

    def measured():
        meter = backend.live_meter()
        held_bytes = meter.held_bytes(0)
        meter.start()
        take_step(optimizer, model(x).sum())
        return held_bytes, meter.stop()

    state_bytes = sum(2 * one.nbytes + torch.tensor(1.0).nbytes for one in model[:3].parameters())
    assert measured() == (state_bytes, forecast.live_bytes)
    model.requires_grad_(True)
    measured()
    assert measured()[0] == 0


def test_adapters_leave_frozen_what_they_are_beside(begin):
    """Of each layer something is trained, so that no layer is frozen to be thawed later."""
    listener, backend = begin(surveys=False)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32)) for _ in range(4)))
    model.requires_grad_(False)
    for layer in model:
        layer[2].requires_grad_(True)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(64, 32)).sum().backward()
    optimizer.step()
    (detection,) = listener.detections
    assert backend.end_step() == ()
    assert not TorchDetection.of(detection).is_thawed
    assert model[0][0].weight.grad is None


def test_a_process_that_is_there_to_be_measured_trains_what_is_frozen(begin, monkeypatch):
    monkeypatch.setattr(Listener, "is_trial", True)
    begin(surveys=False)
    model, optimizer = thawing()
    model(torch.ones(64, 32)).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    optimizer.step()


def test_gradients_of_each_sample_by_transforms_are_refused_in_words_that_help(begin):
    listener, backend = begin()
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = sgd(model)

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x[None],)).sum()

    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.ones(8, 4))
    optimizer.step()
    assert not listener.detections
    assert "torch.func" in backend.why_nothing_trained()
    with pytest.raises(RefusalError, match=r"torch\.func"):
        torch.func.vmap(model)(torch.ones(8, 4))


@pytest.fixture
def roots(monkeypatch):
    """Roots that keep whose calls they tell of; torch is as it was after the test."""
    monkeypatch.setattr(nn.Module, "__call__", nn.Module.__call__)
    monkeypatch.setattr(torch.optim.Optimizer, "add_param_group", torch.optim.Optimizer.add_param_group)
    roots = Roots(lambda root, _args, _kwargs: roots.told.append(root))
    roots.told = []
    return roots


def test_what_a_script_puts_around_calls_outlasts_the_tool_and_nobody_is_told_any_more(roots, monkeypatch):
    roots.install()
    model, called = nn.Linear(2, 2), []
    optimizer = sgd(model)
    before = nn.Module.__call__

    @functools.wraps(before)
    def call(module, *args):
        called.append(module)
        return before(module, *args)

    monkeypatch.setattr(nn.Module, "__call__", call)
    model(torch.ones(1, 2))
    roots.uninstall()
    model(torch.ones(1, 2))
    assert called == [model, model]
    assert roots.told == [model]
    assert optimizer  # as long as it lives, its model is followed


def test_nothing_is_left_where_nothing_was_put_since_and_what_a_training_call_raises_is_told_before(roots):
    before = nn.Module.__call__, torch.optim.Optimizer.add_param_group
    roots.install()
    roots.uninstall()
    assert (nn.Module.__call__, torch.optim.Optimizer.add_param_group) == before
    raised = []
    roots.install(raised.append)
    model = nn.Linear(2, 2)
    optimizer = sgd(model)
    with pytest.raises(RuntimeError, match="cannot be multiplied") as caught:
        model(torch.ones(1, 17))
    roots.uninstall()
    assert raised == [caught.value]
    assert optimizer  # as long as it lives, its model is followed
