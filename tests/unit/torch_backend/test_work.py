import functools

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autorecompute.backends.torch.fake.live import ROUGH, LiveBytes, Segment, work_of
from autorecompute.backends.torch.fake.steps import FakeSteps, Script
from autorecompute.backends.torch.fake.survey import survey_steps
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.forecast.cards import CARDS, capability_of, find_card, machine_of
from autorecompute.backends.torch.forecast.forecast import TorchMemoryModel
from autorecompute.backends.torch.forecast.records import NOTHING, TorchDetection
from autorecompute.backends.torch.switch.applying import Tuned
from tiny_models import call_of, make

ONE = Segment("forward", 0)


class Working(LiveBytes):
    """Asks for the work of each operator."""

    def __init__(self, machine):
        super().__init__(segment=lambda: ONE)
        self._machine = machine

    def _run(self, function, args, kwargs):
        result = function(*args, **kwargs)
        return result, work_of(function, args, kwargs, result, machine=self._machine)


def amount_of(call, machine=ROUGH["cpu"]):
    with Working(machine) as meter:
        call()
    return meter.work[ONE]


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet", "encoder"])
def test_the_operations_of_a_step_are_those_of_torchs_counter(name):
    """Attention of the CPU, which that does not know, is written out."""
    training = make(name)

    def step():
        training.loss(training.model, training.batch).backward()
        training.model.zero_grad()

    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as counter:
            step()
        assert amount_of(step).operations == counter.get_total_flops() > 0


def test_attention_of_a_cpu_counts_as_that_of_a_card():
    """It makes two products of its scores' size forward, and five backward."""
    query, key, value = (torch.randn(2, 3, 64, 32, requires_grad=True) for _ in range(3))
    product = 2 * (2 * 3 * 64 * 64) * 32
    result = []
    forward = amount_of(lambda: result.append(functional.scaled_dot_product_attention(query, key, value)))
    backward = amount_of(lambda: result[0].sum().backward())
    assert (forward.operations, backward.operations) == (2 * product, 5 * product)


def test_an_operator_takes_the_longer_of_computing_and_moving():
    """A product of large matrices is bound by the card's operations, an addition by its memory, a view by nothing."""
    card, one = CARDS["H100"], torch.ones(1024, 1024)
    with FakeTensorMode():
        half = torch.ones(1024, 1024, dtype=torch.bfloat16)
        product = amount_of(lambda: half @ half, card)
    sum_ = amount_of(lambda: one + one, card)
    assert product.cost == pytest.approx(2 * 1024**3 / 989.5e12)
    assert sum_.cost == pytest.approx(3 * 4 * 1024**2 / 3.35e12)
    assert amount_of(lambda: one.view(-1), card).cost == 0.0


def test_a_lookup_moves_what_it_gives_and_an_update_of_all_weights_at_once_what_it_changes_twice():
    table, tokens = nn.Embedding(10_000, 16), torch.arange(8)
    assert amount_of(lambda: table(tokens)).moved_bytes == 2 * 8 * 16 * 4
    weights, gradients = [torch.ones(100)], [torch.ones(100)]
    assert amount_of(lambda: torch._foreach_add_(weights, gradients)).moved_bytes == 3 * 400


@pytest.mark.parametrize(("precision", "speed"), [("highest", 19.5e12), ("high", 156e12)])
def test_tensor_cores_take_float32_where_the_script_lets_them(precision, speed):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        with FakeTensorMode():
            one = torch.ones(2048, 2048)
            seconds = amount_of(lambda: one @ one, CARDS["A100"]).cost
    finally:
        torch.set_float32_matmul_precision(before)
    assert seconds == pytest.approx(2 * 2048**3 / speed)


def test_a_type_that_a_card_has_no_cores_for_has_the_speed_of_float32():
    """A V100 multiplies bfloat16 without its tensor cores."""
    seconds = {}
    with FakeTensorMode():
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            one = torch.ones(2048, 2048, dtype=dtype)
            seconds[dtype] = amount_of(functools.partial(torch.mm, one, one), CARDS["V100"]).cost
    assert seconds[torch.bfloat16] == seconds[torch.float32] > 5 * seconds[torch.float16]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("4090", "RTX 4090"), ("rtx4090", "RTX 4090"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("h100", "H100")),
        *(
            ("A100-40GB", "A100 40GB"),
            ("A100 80 GB", "A100"),
            ("4070 ti super", "RTX 4070 Ti Super"),
            ("6000 Ada", "RTX 6000 Ada"),
        ),
        *(("24GiB", "24GiB"), ("24G", "24GiB"), ("80GB", "74.51GiB")),
        *(("", None), ("24", None), ("RTX", None), ("H1", None), ("Radeon", None), ("A100 A100", None)),
    ],
)
def test_a_card_is_found_by_what_people_call_it(text, name):
    assert find_card(text) == name
    if name is not None:
        assert machine_of(name).name == name
        assert capability_of(name) >= (8, 0)


def test_the_estimate_of_a_preset_is_what_a_whole_step_with_it_computes():
    """To the last operation, and bytes and seconds to a thousandth, but for operators that are made of each other.

    At another batch no step was looked at, and nothing is told.
    """
    training, card = make("llama", batch=8), CARDS["A100"]
    args, kwargs = call_of(training)
    tuned = Tuned.of(training.model, args, kwargs)
    script = Script(args, kwargs, [torch.optim.AdamW(training.model.parameters())])
    steps = survey_steps(training.model, tuned.found, tuned.board, script, card)
    space = space_of(tuned.found, tuned.board, steps)
    memory = TorchMemoryModel(space, steps, 0, {}, TorchDetection(machine=card))
    fakes = FakeSteps(training.model, tuned.found.structure.units, script, tuned.found.values)
    with fakes.prepared(tuned.board, card) as (_, take):
        for preset, config in space.presets.items():
            whole = sum(take(config.choices, optimizes=True).work.values(), NOTHING)
            estimate, rel = memory.forecast(config, memory.dims).estimate, 0.15 if preset == "operators" else 0.001
            assert estimate.flops == pytest.approx(whole.operations, rel=1e-9)
            assert estimate.moved_bytes == pytest.approx(whole.moved_bytes, rel=rel)
            assert estimate.step_seconds == pytest.approx(whole.cost, rel=rel)
            assert estimate.flops_again < estimate.flops
    assert memory.forecast(space.all_on, {"batch": 16}).estimate is None
