"""What is made again is held against what it replaces, in every step."""

import logging

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.check import recompute_check
from autorecompute.backends.torch.find import recipes
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.switch import rewriting
from autorecompute.backends.torch.switch.module_state import Before
from autorecompute.errors import UsageError
from stand_ins.late import WIDTH, Averaging, Late, Normalized, Rerouted, Shifted, blocks, drops, train
from stand_ins.watched import watched

STEPS, LATE = 24, 4
MOST_SHARE, TURNS = recompute_check.MOST_SHARE, recompute_check.TURNS


class Randomized(Late):
    """What RReLU draws is filled in when its node has saved it, which a recompute that stops early does not reach."""

    def __init__(self):
        super().__init__()
        self.last = nn.RReLU(0.1, 0.9)

    def forward(self, x):
        return self.last(self.second(self.first(x)))


class Carrying(Late):
    """Changes an object that it is given."""

    def forward(self, state):
        state.calls += 1
        return state.x + self.second(functional.silu(self.first(state.x) / state.calls))


class Carrier(nn.Sequential):
    def forward(self, x):
        for block in self:
            x = block(State(x))
        return x


class State:
    def __init__(self, x):
        self.x, self.calls = x, 0


class Routed(Late):
    """Sends tokens to one of two layers by a count that its recompute finds changed."""

    def __init__(self):
        super().__init__()
        self.taken = [0]

    def forward(self, x):
        self.counts["calls"] += 1
        chosen = self.first if self.counts["calls"] % 2 else self.second
        return x + chosen(torch.tanh(chosen(x)))


Routed.counts = {"calls": 0}


def nothing_is_read_again(monkeypatch):
    """Put back what drops were: what was verified in the first step is trusted in all later ones."""
    monkeypatch.setattr(rewriting.Rewrite, "_can_be_made_again", lambda *_: True)
    monkeypatch.setattr(rewriting.Drop, "edges", frozenset())
    monkeypatch.setattr(recipes, "noted_value", lambda slot, noted: slot.name == "training" or noted[slot])


def versions_tell_all(monkeypatch):
    """Put back what checkpoints were: of buffers the version alone is looked at."""
    monkeypatch.setattr(Before, "_is_written", lambda *_: False)
    monkeypatch.setattr(Before, "_holds", lambda *_: True)


def as_it_is(_monkeypatch):
    """Put nothing back: the fault is another's."""


def checked(kind, config):
    """Return the losses of a training, and what its check found."""
    torch.manual_seed(0)
    model = (Carrier if kind is Carrying else nn.Sequential)(*(kind() for _ in range(3)))
    Routed.counts["calls"] = 0
    torch.manual_seed(1)
    found = detect(model, (torch.randn(6, WIDTH),), {})
    board = found.switchboard(model)
    board.set(config(found) if config else ())
    losses = train(model, [6] * STEPS, LATE, lambda model, x: model(x).square().mean())
    return losses, board.check.differences


FAULTS = [
    (Normalized, drops, nothing_is_read_again),
    (Shifted, drops, nothing_is_read_again),
    (Rerouted, drops, nothing_is_read_again),
    (Averaging, blocks, versions_tell_all),
    (Randomized, blocks, as_it_is),
    (Carrying, blocks, as_it_is),
    (Routed, blocks, as_it_is),
]


@pytest.mark.parametrize("mode", [recompute_check.SOME, recompute_check.ALL])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault[0].__name__)
def test_a_recompute_that_differs_is_found_within_16_steps_and_taken_back(monkeypatch, caplog, fault, mode):
    kind, config, put_back = fault
    monkeypatch.setenv(recompute_check.VARIABLE, mode)
    monkeypatch.setattr(recompute_check, "MOST_SHARE", 0.0)  # how fast this machine is decides nothing
    put_back(monkeypatch)
    _, differences = checked(kind, config)
    assert differences
    assert {one.site for one in differences} <= {record.args[0].site for record in caplog.records}
    assert all(one.path in {"0", "1", "2"} and one.step <= LATE + 16 for one in differences)
    assert "is not recomputed" in caplog.text


def test_after_a_difference_the_training_is_that_of_no_recompute(monkeypatch):
    monkeypatch.setenv(recompute_check.VARIABLE, "all")
    model = nn.Sequential(*(Randomized() for _ in range(3)))
    x = torch.randn(6, WIDTH)
    found = detect(model, (x,), {})
    board = found.switchboard(model)

    def gradients():
        torch.manual_seed(4)
        return torch.autograd.grad(model(x).square().mean(), list(model.parameters()))

    expected = gradients()
    board.set(blocks(found))
    first, second = gradients(), gradients()
    assert not all(map(torch.equal, first, expected))
    assert all(map(torch.equal, second, expected))


@pytest.mark.parametrize("config", [drops, blocks])
def test_nothing_is_told_where_nothing_differs(monkeypatch, caplog, config):
    monkeypatch.setenv(recompute_check.VARIABLE, "strict")
    losses, differences = checked(Normalized, config)
    assert losses == checked(Normalized, None)[0]
    assert not differences
    assert not caplog.records


def test_a_strict_check_ends_the_step_one_that_is_off_finds_nothing_and_another_word_is_an_error(monkeypatch):
    monkeypatch.setenv(recompute_check.VARIABLE, "strict")
    with pytest.raises(recompute_check.RecomputeDiffersError, match=r"^step 1: .* The optimizer's step is not taken"):
        checked(Randomized, blocks)
    monkeypatch.setenv(recompute_check.VARIABLE, "off")
    assert not checked(Randomized, blocks)[1]
    monkeypatch.setenv(recompute_check.VARIABLE, "everything")
    with pytest.raises(UsageError, match="none of all, some, strict, off"):
        checked(Randomized, blocks)


def test_nothing_is_compared_while_the_check_is_paused(monkeypatch):
    monkeypatch.setenv(recompute_check.VARIABLE, "all")
    watch = watched()
    with watch._check.paused():
        assert not watch.begins()
    assert watch.begins()


@pytest.mark.parametrize(("seconds", "every"), [(0.0, 1), (MOST_SHARE / 3, 1), (MOST_SHARE * 3, TURNS)])
def test_all_is_compared_where_that_costs_little_and_a_part_where_it_does_not(monkeypatch, seconds, every):
    now = [0.0]
    monkeypatch.setattr(recompute_check.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(recompute_check, "bits_of", lambda tensor: now.append(now.pop() + seconds / 2) or tensor.sum())
    watch, compared = watched(recompute_check.SOME), []
    for _ in range(5 * TURNS):
        now[0] += 1.0
        compared.append(watch.begins())
        if compared[-1]:
            watch.compare(watch.sums_of(torch.ones(4)), torch.ones(4))
    assert sum(compared[1:TURNS]) == 1
    assert sum(compared[2 * TURNS :]) == 3 * TURNS / every


class Ending(Late):
    """Counts its calls in eval mode alone, where its recompute finds another count."""

    def __init__(self):
        super().__init__()
        self.calls = [torch.zeros(())]

    def forward(self, x):
        if not self.second.training:
            self.calls[0] = self.calls[0] + 1
            x = x * self.calls[0]
        return x + self.second(torch.tanh(self.first(x)))


def test_a_call_in_another_mode_is_compared_at_once(monkeypatch):
    monkeypatch.setenv(recompute_check.VARIABLE, "some")
    monkeypatch.setattr(recompute_check, "MOST_SHARE", 0.0)
    model, x = nn.Sequential(*(Ending() for _ in range(3))), torch.randn(6, WIDTH)
    found = detect(model, (x,), {})
    board = found.switchboard(model)
    board.set(blocks(found))
    for step in range(3):
        if step == 2:
            for block in model:
                block.second.eval()
        model(x).square().mean().backward()
        assert bool(board.check.differences) == (step == 2)


def test_it_tells_by_how_much(caplog):
    watch, tensor = watched(), torch.full((100,), 2.0)
    sums, again = watch.sums_of(tensor), tensor.clone()
    again[7] = 4.0
    with caplog.at_level(logging.WARNING):
        watch.compare(sums, again)
    (found,) = watch._check.differences
    assert found.relative == pytest.approx(2 / torch.linalg.vector_norm(again).item())
    assert str(found).startswith("step ")
    assert "float32 (100,)" in caplog.text


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(5),
        torch.randn(5)[1:],
        torch.randn(4, 6).t(),
        torch.randn(4, 6)[:, 1:4],
        torch.randn(3, 1, 2).expand(3, 7, 2)[:, :1],
        torch.randn(9, dtype=torch.bfloat16),
        torch.randn(3, dtype=torch.complex64),
        torch.rand(17) < 0.5,
        torch.tensor(3),
        torch.arange(2**17 + 1, dtype=torch.int16)[1:],
    ],
)
def test_sums_tell_tensors_apart_that_differ_in_one_number(tensor):
    before, last = int(recompute_check.bits_of(tensor)), (-1,) * tensor.dim()
    assert before == int(recompute_check.bits_of(tensor.detach()))
    tensor[last] = ~tensor[last] if tensor.dtype == torch.bool else tensor[last] * 2 + 1
    assert before != int(recompute_check.bits_of(tensor))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(3, 2, dtype=torch.complex64).conj(),
        torch.randn(3, 2, dtype=torch.complex64).conj().imag,
        torch.randn(5).to(torch.float8_e4m3fn),
    ],
    ids=["conjugated", "negated", "8 bits"],
)
def test_numbers_that_are_marked_as_others_or_have_no_sum_are_compared(tensor):
    """Training went on without the check, and ended with it."""
    watch = watched()
    sums = watch.sums_of(tensor)
    watch.compare(sums, tensor)
    assert not watch._check.differences
    tensor[-1] = 3.0
    watch.compare(sums, tensor)
    assert watch._check.differences
