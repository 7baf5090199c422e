"""What steps compute: operations, bytes that are moved, and the time that a machine takes for them at least."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from autorecompute.backends.torch.amounts import NOTHING
from autorecompute.backends.torch.cards import CARDS, machine_of
from autorecompute.backends.torch.fake_mode import LargeTensorsAreFake
from autorecompute.backends.torch.fakes import FakeSteps, Script
from autorecompute.backends.torch.forecast import TorchMemoryModel
from autorecompute.backends.torch.live import LiveBytes, Segment
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.speeds import MeasuredSpeeds
from autorecompute.backends.torch.survey import survey_steps
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.backends.torch.work import Work
from tiny_models import call_of, make

ONE = Segment("forward", 0)
DOCS = Path(__file__).parents[3] / "docs"
KINDS = ("float32", "tf32", "bfloat16", "float16")


def amount_of(call, speeds=None):
    """What everything in a call computes."""
    meter = LiveBytes(segment=lambda: ONE, work=Work("cpu", speeds))
    with meter:
        call()
    return meter.work[ONE]


@pytest.mark.parametrize("name", ["gpt2", "llama", "resnet", "encoder"])
def test_the_operations_of_a_step_are_those_of_torchs_counter(name):
    """All products and convolutions are counted, forward and backward, and attention of the CPU besides."""
    training = make(name)

    def step():
        training.loss(training.model, training.batch).backward()

    with FlopCounterMode(display=False) as counter:
        step()
    training.model.zero_grad()
    counted, attention = counter.get_total_flops(), attention_in(training)
    assert amount_of(step).operations == counted + attention
    assert counted > 0


def attention_in(training):
    """The operations of the calls that torch's counter leaves out."""
    found = []

    class Attention(LiveBytes):
        def _run(self, function, args, kwargs):
            if "for_cpu" in str(function):
                found.append(float(Work().of(function, args, kwargs, None).operations))
            return super()._run(function, args, kwargs)

    with Attention():
        training.loss(training.model, training.batch).backward()
    training.model.zero_grad()
    return sum(found)


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
    half = one.to(torch.bfloat16)
    product, sum_ = amount_of(lambda: half @ half, card), amount_of(lambda: one + one, card)
    assert product.cost == pytest.approx(2 * 1024**3 / 989.5e12)
    assert sum_.cost == pytest.approx(3 * 4 * 1024**2 / 3.35e12)
    assert amount_of(lambda: one.view(-1), card).cost == 0.0


def test_a_lookup_moves_what_it_gives_and_not_its_table():
    """A vocabulary is not read in full for a few tokens."""
    table = nn.Embedding(10_000, 16)
    tokens = torch.arange(8)
    assert amount_of(lambda: table(tokens)).moved_bytes == 2 * 8 * 16 * 4


def test_the_update_of_all_weights_at_once_is_written_too():
    """Operators that change lists in place give nothing, and move what they change twice."""
    weights, gradients = [torch.ones(100)], [torch.ones(100)]
    assert amount_of(lambda: torch._foreach_add_(weights, gradients)).moved_bytes == 3 * 400


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_tensor_cores_take_float32_where_the_script_lets_them(precision):
    """The setting of the process decides between the card's speeds."""
    before, one = torch.get_float32_matmul_precision(), torch.ones(2048, 2048)
    torch.set_float32_matmul_precision(precision)
    try:
        seconds = amount_of(lambda: one @ one, CARDS["A100"]).cost
    finally:
        torch.set_float32_matmul_precision(before)
    assert seconds == pytest.approx(2 * 2048**3 / (19.5e12 if precision == "highest" else 156e12))


def test_a_type_that_a_card_has_no_cores_for_has_the_speed_of_float32():
    """A V100 multiplies bfloat16 without its tensor cores."""
    card = CARDS["V100"]
    assert card.operations_per_second("bfloat16") == card.operations_per_second("float32")
    assert card.operations_per_second("float16") > 5 * card.operations_per_second("float32")


def test_every_card_says_where_its_figures_come_from():
    """Half precision is never slower than single, and each has a source."""
    for name, card in CARDS.items():
        machine = machine_of(name)
        assert machine.source.startswith("NVIDIA")
        assert card.operations_per_second("float16") >= card.operations_per_second("float32") > card.bytes_per_second


def test_the_documentation_has_the_figures_of_every_card():
    """A row for each, with what the table of the package says."""
    for name, card in CARDS.items():
        (row,) = [line for line in (DOCS / "gpu.md").read_text().splitlines() if line.startswith(f"| {name} | ")]
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        speeds = [f"{card.teraflops[kind]:g}" if kind in card.teraflops else "-" for kind in KINDS]
        capability = ".".join(map(str, card.capability))
        assert cells == [name, capability, str(card.memory_gb), f"{card.gb_per_second:g}", *speeds, card.source]


def test_this_machine_is_measured_with_data_where_everything_else_is_fake():
    """A fake product takes no time: the speed would be that of no machine."""
    with LargeTensorsAreFake():
        speeds = MeasuredSpeeds("cpu")
        found = [speeds.operations_per_second("float32"), speeds.bytes_per_second]
    assert 1e8 < found[0] < 1e14
    assert 1e8 < found[1] < 1e12
    assert speeds.machine.operations_per_second == {"float32": found[0]}


CHAINED = "operators"
"""Of these, some are made again from others that are made again as well: more than each alone."""


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_estimate_of_a_preset_is_what_a_whole_step_with_it_computes(name):
    """Operations to the last one, bytes and seconds to a thousandth; operators that build on each other are told less.

    At another batch no step was looked at, and nothing is told.
    """
    training, card = make(name, batch=8), CARDS["A100"]
    optimizer = torch.optim.AdamW(training.model.parameters())
    args, kwargs = call_of(training)
    tuned = Tuned.of(training.model, args, kwargs)
    script = Script(args, kwargs, [optimizer])
    steps = survey_steps(training.model, tuned.found, tuned.board, script, card)
    space = space_of(tuned.found, tuned.board, steps)
    memory = TorchMemoryModel(space, steps, 0, {}, machine=machine_of("A100"))
    fakes = FakeSteps(training.model, tuned.found.structure.units, script, tuned.found.values)
    with fakes.prepared(tuned.board, card) as (_, take):
        for preset, config in space.presets.items():
            whole = sum(take(config.choices, optimizes=True).work.values(), NOTHING)
            estimate, rel = memory.forecast(config, memory.dims).estimate, 0.15 if preset == CHAINED else 0.001
            assert estimate.operations == pytest.approx(whole.operations, rel=1e-9)
            assert estimate.moved_bytes == pytest.approx(whole.moved_bytes, rel=rel)
            assert estimate.seconds == pytest.approx(whole.cost, rel=rel)
            assert estimate.operations_again < estimate.operations
    assert memory.forecast(space.all_on, {"batch": 16}).estimate is None
