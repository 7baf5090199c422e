"""Plans whose outputs lie in one buffer, as ORT 1.19.2 answers for a GPT-2 and for an activation kept in two shapes."""

from __future__ import annotations

import pytest

from autorecompute.backends.ortmodule.detection import correct_for_sharing
from autorecompute.plans import Activation, Choice, Insight, Option, Plan, Row

DIMS = {"batch": 4, "sequence": 16}
NORM, GELU, FLAT = (Row(f"{name}+", Option.RECOMPUTE) for name in ("LayerNormalization", "Gelu", "Reshape"))


def make_insight(row, frequency, *outputs, reuse_frequency=0):
    """Nodes that keep outputs of these shapes, from output 0 on; ``None`` stands for one that is not kept."""
    kept = [
        Activation(output=output, shape=shape, element_bytes=4, saved_bytes=4, reuse_frequency=reuse_frequency)
        for output, shape in enumerate(outputs)
        if shape is not None
    ]
    return Insight(frequency=frequency, choices=(Choice(row=row, activations=tuple(kept)),))


def make_plan(*rows, frequency, saving_bytes, saving_symbolic, stated_symbolic=None):
    """What ORT answers, with the saving of all outputs."""
    return Plan(
        rows=rows,
        frequency=frequency,
        saving_bytes=saving_bytes,
        saving_symbolic=saving_symbolic,
        stated_symbolic=stated_symbolic,
    )


SMALL, WIDE, FLATTENED = ("batch", "sequence"), ("batch", "sequence", "32"), ("batch*sequence", "32")

# A layer's norm keeps its mean and deviation only, as its output is kept reshaped; the last norm keeps all three.
NORMS = (
    make_insight(NORM, 4, None, SMALL, SMALL),
    make_insight(NORM, 1, WIDE, SMALL, SMALL),
    make_insight(FLAT, 4, FLATTENED, reuse_frequency=4),
    make_insight(FLAT, 1, ("batch", "32")),
)
NORM_ALONE = make_plan(
    NORM, frequency=5, saving_bytes=10752, saving_symbolic="168*batch*sequence", stated_symbolic="16*batch*sequence"
)
FLAT_ALONE = make_plan(FLAT, frequency=1, saving_bytes=512, saving_symbolic="128*batch")
NORM_AND_FLAT = make_plan(NORM, FLAT, frequency=4, saving_bytes=1024, saving_symbolic="16*batch*sequence")

# The activation is kept itself, and in another shape.
GELUS = (make_insight(GELU, 2, WIDE), make_insight(FLAT, 2, FLATTENED, reuse_frequency=2))
GELU_ALONE = make_plan(GELU, frequency=2, saving_bytes=16384, saving_symbolic="256*batch*sequence")
GELU_AND_FLAT = make_plan(GELU, FLAT, frequency=2, saving_bytes=16384, saving_symbolic="256*batch*sequence")


def test_plans_that_share_are_worth_all_that_both_are_about():
    """The norms' statistics, their reshaped outputs, and what else either plan recomputes: 36 times what ORT states."""
    plans = [NORM_ALONE, FLAT_ALONE, NORM_AND_FLAT]
    together = correct_for_sharing(NORM_AND_FLAT, plans, NORMS, DIMS)
    assert together.saving_bytes == 10752 + 4 * 4 * 16 * 32 * 4 + 512
    assert together.stated_symbolic == "16*batch*sequence"
    assert correct_for_sharing(NORM_ALONE, plans, NORMS, DIMS) == NORM_ALONE
    assert correct_for_sharing(FLAT_ALONE, plans, NORMS, DIMS) == FLAT_ALONE


def test_a_buffer_that_another_plan_keeps_is_not_saved_alone():
    """The activation saves nothing while its reshaped self is kept, and is counted once where both are recomputed."""
    plans = [GELU_ALONE, GELU_AND_FLAT]
    alone = correct_for_sharing(GELU_ALONE, plans, GELUS, DIMS)
    assert (alone.saving_bytes, alone.stated_symbolic) == (0, "256*batch*sequence")
    assert correct_for_sharing(GELU_AND_FLAT, plans, GELUS, DIMS) == GELU_AND_FLAT


@pytest.mark.parametrize(
    "insights",
    [
        (make_insight(GELU, 2, WIDE), make_insight(FLAT, 2, FLATTENED)),
        (make_insight(GELU, 2, WIDE), make_insight(GELU, 2, SMALL), GELUS[1]),
    ],
)
def test_what_the_activations_do_not_tell_is_left_as_stated(insights):
    """Neither plan lies in the other's buffers, or both kinds of node could be the ones that share."""
    plans = [GELU_ALONE, GELU_AND_FLAT]
    assert [correct_for_sharing(plan, plans, insights, DIMS) for plan in plans] == plans


def test_a_plan_that_shares_with_several_is_left_as_stated():
    """Nothing tells whether the others lie in the same buffers."""
    squeeze = Row("Squeeze+", Option.RECOMPUTE)
    another = make_plan(GELU, squeeze, frequency=2, saving_bytes=16384, saving_symbolic="256*batch*sequence")
    plans = [GELU_ALONE, GELU_AND_FLAT, another]
    assert correct_for_sharing(GELU_ALONE, plans, GELUS, DIMS) == GELU_ALONE
