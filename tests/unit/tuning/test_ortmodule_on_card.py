"""Plans of a BERT in an ORTModule, as an H100 measured each: ``benchmarks/printed/card-ortmodule.txt``.

There all plans together need more than none, and no small step could be profiled.
"""

import itertools

import pytest

from autorecompute.plans import Choice, Config, Plan, Space
from autorecompute.training_job import Device
from autorecompute.units import GIB
from stand_ins.formula import FormulaBench
from unit.conftest import build_detection

NONE, ALL, SECONDS = 21.78, 26.75, 32 / 329.2
MEASURED = {  # GiB reserved, samples/s
    "softmax": (18.03, 311.9),
    "gelu": (18.97, 326.3),
    "matmul": (19.11, 326.8),
    "matmul_add": (19.44, 314.3),
    "norm": (20.38, 321.1),
    "matmul_softmax": (20.75, 327.1),
    "matmul_transpose": (20.56, 327.0),
    "reshape": (21.12, 325.6),
    "slice_expand": (21.12, 324.8),
    "slice": (21.12, 326.8),
}
CHAIN = ("softmax", "matmul", "matmul_add", "matmul_softmax", "matmul_transpose")
"""Made again together they hold one another's results."""

SPACE = Space(
    plans=tuple(
        Plan(choices=(Choice(name, "1"),), label=name, occurrences=12, saving_bytes=0, saving="batch")
        for name in MEASURED
    ),
    own_presets={},
)


class Card(FormulaBench):
    """A card that is larger than the limit."""

    def peak_bytes(self, config, batch):
        on = {plan.label for plan in SPACE.plans if config.has(plan)}
        saved = sum(NONE - MEASURED[name][0] for name in on)
        held = ALL - NONE + sum(NONE - gib for gib, _ in MEASURED.values()) if on.issuperset(CHAIN) else 0
        return round((NONE - saved + held) * GIB * batch / 32)

    def seconds(self, config, batch):
        on = [plan.label for plan in SPACE.plans if config.has(plan)]
        return SECONDS * batch / 32 * (1 + sum(329.2 / MEASURED[name][1] - 1 for name in on))


@pytest.mark.parametrize("limit", [17, 12])
def test_a_mix_is_found_where_all_plans_together_need_more_than_none(tune_in, make_root, limit):
    card = Device(kind="cuda", name="card", uuid="1", total_bytes=80 * GIB)
    bench = Card(build_detection(SPACE, device=card, resting_bytes=2 * GIB))
    assert bench.peak_bytes(SPACE.all_on, 32) == round(ALL * GIB)
    best = tune_in(make_root(), bench, limit_bytes=limit * GIB, max_trials=20).run().best
    assert best.peak_bytes <= limit * GIB
    sizes = range(len(SPACE.plans) + 1)
    mixes = [Config.of(plans) for size in sizes for plans in itertools.combinations(SPACE.plans, size)]
    fitting = [mix for mix in mixes if bench.peak_bytes(mix, 32) <= limit * GIB]
    assert bench.seconds(best.config, 32) <= 1.02 * min(bench.seconds(mix, 32) for mix in fitting)
