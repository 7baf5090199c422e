"""Plans whose outputs lie in one buffer, as ORT 1.19.2 answers for a GPT-2 and for an activation kept in two shapes."""

import pytest

from autorecompute.backends.ortmodule.detection import correct_for_sharing
from autorecompute.backends.ortmodule.grammar import RECOMPUTE
from autorecompute.plans import Activation, Alternative, Choice, Cluster, Plan

DIMS = {"batch": 4, "sequence": 16}
NORM, GELU, FLAT = (Choice(f"{name}+", RECOMPUTE) for name in ("LayerNormalization", "Gelu", "Reshape"))


def make_cluster(choice, occurrences, *outputs, reuse_frequency=0):
    """Nodes that keep outputs of these shapes, from output 0 on; ``None`` stands for one that is not kept."""
    kept = [
        Activation(output=output, shape=shape, element_bytes=4, saved_bytes=4, reuse_frequency=reuse_frequency)
        for output, shape in enumerate(outputs)
        if shape is not None
    ]
    way = Alternative(choice=choice, activations=tuple(kept))
    return Cluster(occurrences=occurrences, alternatives=(way,))


def make_plan(*choices, occurrences, saving_bytes, saving, stated=None):
    """What ORT answers, with the saving of all outputs."""
    return Plan(
        choices=choices,
        label="a plan",
        occurrences=occurrences,
        saving_bytes=saving_bytes,
        saving=saving,
        stated=stated,
    )


SMALL, WIDE, FLATTENED = ("batch", "sequence"), ("batch", "sequence", "32"), ("batch*sequence", "32")

# A layer's norm keeps its mean and deviation only, as its output is kept reshaped; the last norm keeps all three.
NORMS = (
    make_cluster(NORM, 4, None, SMALL, SMALL),
    make_cluster(NORM, 1, WIDE, SMALL, SMALL),
    make_cluster(FLAT, 4, FLATTENED, reuse_frequency=4),
    make_cluster(FLAT, 1, ("batch", "32")),
)
NORM_ALONE = make_plan(NORM, occurrences=5, saving_bytes=10752, saving="168*batch*sequence", stated="16*batch*sequence")
FLAT_ALONE = make_plan(FLAT, occurrences=1, saving_bytes=512, saving="128*batch")
NORM_AND_FLAT = make_plan(NORM, FLAT, occurrences=4, saving_bytes=1024, saving="16*batch*sequence")

# The activation is kept itself, and in another shape.
GELUS = (make_cluster(GELU, 2, WIDE), make_cluster(FLAT, 2, FLATTENED, reuse_frequency=2))
GELU_ALONE = make_plan(GELU, occurrences=2, saving_bytes=16384, saving="256*batch*sequence")
GELU_AND_FLAT = make_plan(GELU, FLAT, occurrences=2, saving_bytes=16384, saving="256*batch*sequence")


def test_plans_that_share_are_worth_all_that_both_are_about():
    """The norms' statistics, their reshaped outputs, and what else either plan recomputes: 36 times what ORT states."""
    plans = [NORM_ALONE, FLAT_ALONE, NORM_AND_FLAT]
    together = correct_for_sharing(NORM_AND_FLAT, plans, NORMS, DIMS)
    assert together.saving_bytes == 10752 + 4 * 4 * 16 * 32 * 4 + 512
    assert together.stated == "16*batch*sequence"
    assert correct_for_sharing(NORM_ALONE, plans, NORMS, DIMS) == NORM_ALONE
    assert correct_for_sharing(FLAT_ALONE, plans, NORMS, DIMS) == FLAT_ALONE


def test_a_buffer_that_another_plan_keeps_is_not_saved_alone():
    """The activation saves nothing while its reshaped self is kept, and is counted once where both are recomputed."""
    plans = [GELU_ALONE, GELU_AND_FLAT]
    alone = correct_for_sharing(GELU_ALONE, plans, GELUS, DIMS)
    assert (alone.saving_bytes, alone.stated) == (0, "256*batch*sequence")
    assert correct_for_sharing(GELU_AND_FLAT, plans, GELUS, DIMS) == GELU_AND_FLAT


@pytest.mark.parametrize(
    "clusters",
    [
        (make_cluster(GELU, 2, WIDE), make_cluster(FLAT, 2, FLATTENED)),
        (make_cluster(GELU, 2, WIDE), make_cluster(GELU, 2, SMALL), GELUS[1]),
    ],
)
def test_what_the_activations_do_not_tell_is_left_as_stated(clusters):
    """Neither plan lies in the other's buffers, or both kinds of node could be the ones that share."""
    plans = [GELU_ALONE, GELU_AND_FLAT]
    assert [correct_for_sharing(plan, plans, clusters, DIMS) for plan in plans] == plans


def test_a_plan_that_shares_with_several_is_left_as_stated():
    """Nothing tells whether the others lie in the same buffers."""
    squeeze = Choice("Squeeze+", RECOMPUTE)
    another = make_plan(GELU, squeeze, occurrences=2, saving_bytes=16384, saving="256*batch*sequence")
    plans = [GELU_ALONE, GELU_AND_FLAT, another]
    assert correct_for_sharing(GELU_ALONE, plans, GELUS, DIMS) == GELU_ALONE
