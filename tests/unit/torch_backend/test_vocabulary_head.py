"""A head whose logits are made in chunks of rows: what a loss gives, and what anything else gets."""

import io
import weakref
from operator import itemgetter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.find.detection import detect, space_of
from autorecompute.backends.torch.switch.chunks import sum_of
from autorecompute.backends.torch.switch.heads import Head
from autorecompute.backends.torch.switch.intercepting import put_around, release
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.plans import Choice
from stand_ins.vocabulary import (
    IGNORED,
    LOSSES,
    OTHERS,
    ROWS,
    WORDS,
    Model,
    Tripled,
    WithLoss,
    X,
    Y,
    assert_close,
    both,
    flat_loss,
    hidden_of,
    plain_logits,
    step,
)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Model()


@pytest.fixture
def head(model):
    """The model's own, not made until it is looked at."""
    around = Head("head")
    put_around(model.head, [around])
    yield around
    release(model.head)


@pytest.mark.parametrize("way", LOSSES)
def test_a_loss_is_the_same_and_no_logits_are_made(model, way):
    plain, chunked, made = both(model, LOSSES[way])
    assert_close(plain, chunked)
    assert made == 0


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the compiler asks for it
def test_a_loss_may_be_compiled(model):
    plain, chunked, made = both(model, torch.compile(flat_loss, backend="eager"))
    assert_close(plain, chunked)
    assert made == 0


@pytest.mark.parametrize("way", OTHERS)
def test_what_is_no_loss_of_rows_gets_the_logits(model, way):
    plain, chunked, made = both(model, OTHERS[way])
    assert_close(plain, chunked)
    assert made == 1


def test_their_numbers_are_those_of_the_head(model, head):
    logits = model(X)
    assert (logits.shape, logits.dtype, logits.device) == ((*ROWS, WORDS), torch.float32, X.device)
    assert logits.requires_grad
    assert not logits.is_leaf
    assert not logits.detach().requires_grad
    assert (len(logits), head.made) == (ROWS[0], 0)
    with torch.no_grad():
        expected = model(X)
    assert type(expected) is torch.Tensor
    assert torch.equal(logits.cpu(), expected)
    saved = io.BytesIO()
    torch.save(logits.detach(), saved)
    pickled = torch.load(io.BytesIO(saved.getvalue()))
    assert torch.equal(pickled, expected)
    assert "tensor(" in repr(logits)
    assert head.made == 1  # detached ones are a view


def test_second_derivatives_are_the_same(model):
    def loss_of(logits):
        gradients = torch.autograd.grad(flat_loss(logits), list(model.parameters()), create_graph=True)
        return sum(one.pow(2).sum() for one in gradients)

    plain, chunked, _ = both(model, loss_of)
    assert_close(plain, chunked, 1e-5)


@pytest.mark.parametrize("made", [False, True])
def test_a_head_is_trained_as_it_was_when_it_was_called(model, made):
    def frozen_between(logits):
        if made:
            logits.sum()
        model.head.requires_grad_(False)
        loss = flat_loss(logits)
        model.head.requires_grad_(True)
        return loss

    plain, chunked, _ = both(model, frozen_between)
    assert_close(plain, chunked)


def test_a_loss_may_be_scaled_and_its_graph_kept(model):
    def twice(logits):
        loss = 1024 * flat_loss(logits)
        loss.backward(retain_graph=True)
        return loss

    plain, chunked, _ = both(model, twice)
    assert_close(plain, chunked)


@pytest.mark.parametrize(("reduction", "dtype", "times"), [
    ("mean", torch.bfloat16, 1), ("sum", torch.bfloat16, 1), ("sum", torch.float16, 2), ("none", torch.bfloat16, 2)
])  # fmt: skip
@pytest.mark.usefixtures("head")
def test_chunks_of_a_sum_are_made_once_unless_its_gradients_may_need_a_scale(
    model, monkeypatch, reduction, dtype, times
):
    chunks = []
    monkeypatch.setattr(
        "autorecompute.backends.torch.switch.chunks.sum_of",
        lambda terms, piece=None: chunks.append(piece.start) or sum_of(terms, piece),
    )
    with torch.autocast("cpu", dtype):
        losses = flat_loss(model(X), reduction=reduction)
    losses.sum().backward()
    assert chunks == [0, 256] * times


def another_optimizer_steps(model):
    """Between the head and its loss, as in a GAN."""
    other = nn.Parameter(torch.ones(3))
    other.grad = torch.ones(3)
    logits = model(X)
    torch.optim.SGD([other], 0.1).step()
    (flat_loss(logits) + model.inner.weight.pow(2).sum()).backward()


def derivative_of_tied_weights(model):
    model.words.weight = nn.Parameter(model.head.weight.detach().clone())
    model.head.weight = model.words.weight
    flat_loss(model(X)).backward(create_graph=True)


def function_of_tied_weights(model):
    model.head.weight = model.words.weight
    Tripled.apply(model(X)).pow(2).mean().backward()


def loss_in_a_checkpoint(model):
    hidden, calls = hidden_of(model), []
    checkpoint(lambda given: calls.append(1) or flat_loss(model.head(given)), hidden, use_reentrant=False).backward()
    assert len(calls) == 2


@pytest.mark.parametrize(
    "train", [another_optimizer_steps, derivative_of_tied_weights, function_of_tied_weights, loss_in_a_checkpoint]
)
@pytest.mark.filterwarnings("ignore:Using backward")
def test_gradients_are_those_of_plain_logits(model, train):
    found = []
    for is_around in (False, True, True):  # what the first step has told may change the next
        if is_around:
            put_around(model.head, [Head("head")])
        train(model)
        found.append((torch.zeros(()), {name: one.grad.detach() for name, one in model.named_parameters()}))
        model.zero_grad()
        release(model.head)
    assert_close(*found[:2])
    assert_close(found[0], found[2])


def write_weight(model, *_):
    with torch.no_grad():
        model.head.weight.mul_(2)


@pytest.mark.usefixtures("head")
@pytest.mark.parametrize("write", [write_weight, lambda _, labels: labels.zero_()], ids=["weight", "labels"])
def test_what_was_written_into_is_not_gone_back_through(model, write):
    logits, labels = model(X), Y.clone()
    loss = flat_loss(logits, labels)
    write(model, labels)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.usefixtures("head")
def test_a_weight_or_an_input_that_was_written_into_before_the_loss_is_refused(model):
    logits = model(X)
    write_weight(model)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        (flat_loss(logits) + model.inner.weight.pow(2).sum()).backward()
    hidden = hidden_of(model)
    logits = model.head(hidden)
    with torch.no_grad():
        hidden.zero_()
    with pytest.raises(RuntimeError, match="input was written into"):
        logits.sum()


@pytest.mark.usefixtures("head")
def test_logits_tell_no_gradient_behind_a_loss_in_chunks(model):
    logits = model(X)
    flat_loss(logits)
    with pytest.raises(RuntimeError, match="before the loss"):
        logits.retain_grad()


@pytest.mark.usefixtures("head")
def test_without_a_label_there_is_no_number_and_an_empty_batch_has_an_empty_loss(model):
    assert flat_loss(model(X), torch.full_like(Y, IGNORED)).isnan()
    loss = flat_loss(model(X[:0]), Y[:0], reduction="sum")
    loss.backward()
    assert loss == 0
    assert not model.head.weight.grad.any()


def test_autocast_is_followed(model):
    def autocast_loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(x)
            assert logits.dtype == torch.bfloat16
            return flat_loss(logits)

    plain = autocast_loss(X)
    plain.backward()
    expected = model.head.weight.grad.clone()
    model.zero_grad()
    put_around(model.head, [Head("head")])
    chunked = autocast_loss(X)
    chunked.backward()
    release(model.head)
    assert chunked.dtype == plain.dtype
    torch.testing.assert_close(chunked, plain, rtol=1e-2, atol=0)
    assert (model.head.weight.grad - expected).abs().max() <= 0.03 * expected.abs().max()


@pytest.mark.usefixtures("head")
def test_logits_that_are_used_behind_a_step_are_made_before_the_next_ones(model, caplog):
    optimizer = torch.optim.SGD(model.parameters(), 0.1, fused=True)  # which does not count what it writes

    def step():
        logits = model(X)
        flat_loss(logits).backward()
        with torch.no_grad():
            hidden, expected = hidden_of(model), plain_logits(model)
        optimizer.step()
        return logits, hidden, expected

    logits, hidden, _ = step()
    with torch.no_grad():
        assert torch.equal(logits.argmax(-1), functional.linear(hidden, model.head.weight, model.head.bias).argmax(-1))
    assert "these are made with the new weight" in caplog.text
    for _ in range(2):
        logits, _, expected = step()
        assert torch.equal(logits.double().float() * 1.0, expected)
        assert torch.equal(logits.detach() + 0, expected)
        assert not logits.argmax(-1).requires_grad
    assert caplog.text.count("used after optimizer.step()") == 1


@pytest.mark.usefixtures("head")
def test_what_is_kept_of_each_step_keeps_no_graph_and_is_of_its_step(model):
    optimizer, graphs, kept, expected = torch.optim.SGD(model.parameters(), 0.1), [], [], []
    for _ in range(4):
        logits = model(X)
        kept.append(logits.detach())
        graphs.append(weakref.ref(logits))
        flat_loss(logits).backward()
        with torch.no_grad():
            expected.append(plain_logits(model))
        del logits
        optimizer.step()
        kept[0].max()  # used behind a step, so that it is known to be
    assert not any(graph() is not None for graph in graphs)
    for own, found in zip(expected[1:], kept[1:], strict=True):
        assert torch.equal(found + 0, own)


def test_a_plan_is_found_and_applied(model):
    found = detect(model, (X,), {})
    board = found.switchboard(model)
    choice = Choice("head/cross_entropy", "chunk")
    assert choice.site in board.sites
    within = {plan.id: plan.equal_within for plan in space_of(found, board, None).plans if plan.equal_within}
    assert within == {str(choice): 1e-4}
    assert choice.site not in {site.name for site in found.exact().sites}
    assert choice.site not in {site.name for site in detect(model, (X[:2],), {}).sites}, "they are one chunk"
    board.set([choice])
    assert isinstance(model(X), Logits)
    assert type(model.eval()(X)) is torch.Tensor
    model.train()
    board.set([])
    assert type(model(X)) is torch.Tensor


CHUNKS = Choice("head/cross_entropy", "chunk")


def test_the_products_of_lora_are_one_head():
    torch.manual_seed(0)
    model = WithLoss(adapts=True)
    found = detect(model, (X, Y), {})
    (site,) = (site for site in found.sites if "chunk" in site.options)
    assert site.occurrences == ("head", "adapted.1")
    plain, board = step(model, itemgetter(0)), found.switchboard(model)
    board.set([Choice(site.name, "chunk")])
    assert_close(plain, step(model, itemgetter(0)))
    assert not any(head.made for head in board.heads.values())


def test_gradients_are_compared_within_the_tolerance_of_their_type():
    torch.manual_seed(0)
    model = WithLoss()
    board = detect(model, (X, Y), {}).switchboard(model)
    check = check_gradients(model, board, [CHUNKS], (X, Y), {})
    assert check.agrees
    assert 0 < check.worst < 1e-5
    assert not any(head.made for head in board.heads.values())  # it looked at the logits itself


def test_a_forecast_is_what_a_step_has_alive():
    model = WithLoss()
    found = detect(model, (X, Y), {})
    board = found.switchboard(model)
    steps, beyond = FakeSteps(model, (), Script((X, Y), {}), found.values), []
    for choices in ([], [CHUNKS]):
        forecast = steps.run(board, choices)
        board.set(choices)
        with LiveBytes(tensors_of(model, (), (X, Y))) as live:
            loss = model(X, Y)[0]
            loss.backward()
            model.zero_grad()
        assert forecast.peak - forecast.base == live.peak - live.base
        beyond.append(live.peak - live.base)
    logits_bytes = len(X) * WORDS * 4
    assert beyond[0] > 2 * logits_bytes
    assert beyond[1] < beyond[0] - logits_bytes


def test_the_norm_before_the_head_is_kept_beside_chunks():
    torch.manual_seed(0)
    model = WithLoss()
    model.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.LayerNorm(8))
    found = detect(model, (X, Y), {})
    board = found.switchboard(model)
    drops = [Choice(site.name, "drop") for site in found.sites if "drop" in site.options]
    assert drops
    assert {effect.site for effect in board.resolve([*drops, CHUNKS])} == {CHUNKS.site}
