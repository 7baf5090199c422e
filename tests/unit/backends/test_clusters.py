import pytest

from autorecompute import codec
from autorecompute.backends.ortmodule import controller
from autorecompute.backends.ortmodule.detection import correct_for_sharing
from autorecompute.plans import Activation, Alternative, Choice, Cluster, Plan
from unit.conftest import build_detection

DIMS = {"batch": 4, "sequence": 16}
NORM, GELU, FLAT, BOTH = (
    Choice(f"{name}+", controller.RECOMPUTE) for name in ("LayerNormalization", "Gelu", "Reshape", "Cast")
)


def make_cluster(choice, occurrences, *outputs, reuse_frequency=0):
    kept = [
        Activation(output=output, shape=shape, element_bytes=4, saved_bytes=4, reuse_frequency=reuse_frequency)
        for output, shape in enumerate(outputs)
        if shape is not None
    ]
    way = Alternative(choice=choice, activations=tuple(kept))
    return Cluster(occurrences=occurrences, alternatives=(way,))


def make_plan(*choices, **stated):
    return Plan(choices=choices, label="a plan", **stated)


SMALL, WIDE, FLATTENED = ("batch", "sequence"), ("batch", "sequence", "32"), ("batch*sequence", "32")

# A GPT-2 as ORT 1.19.2 sees it. A layer's norm keeps its mean and deviation only, as its output is kept reshaped; the
# last norm keeps all three.
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


def test_what_plans_share_is_worth_all_to_both_together_and_nothing_alone_where_the_other_keeps_it():
    plans = [NORM_ALONE, FLAT_ALONE, NORM_AND_FLAT]
    together = correct_for_sharing(NORM_AND_FLAT, plans, NORMS, DIMS)
    assert together.saving_bytes == 10752 + 4 * 4 * 16 * 32 * 4 + 512
    assert together.stated == "16*batch*sequence"
    assert correct_for_sharing(NORM_ALONE, plans, NORMS, DIMS) == NORM_ALONE
    assert correct_for_sharing(FLAT_ALONE, plans, NORMS, DIMS) == FLAT_ALONE
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
    plans = [GELU_ALONE, GELU_AND_FLAT]
    assert [correct_for_sharing(plan, plans, clusters, DIMS) for plan in plans] == plans


def test_a_plan_that_shares_with_several_is_left_as_stated():
    squeeze = Choice("Squeeze+", controller.RECOMPUTE)
    another = make_plan(GELU, squeeze, occurrences=2, saving_bytes=16384, saving="256*batch*sequence")
    plans = [GELU_ALONE, GELU_AND_FLAT, another]
    assert correct_for_sharing(GELU_ALONE, plans, GELUS, DIMS) == GELU_ALONE


WHOLE, PART = Choice("Less+Cast+", controller.RECOMPUTE), Choice("Cast+", controller.COMPROMISE)
KEPT = (Activation(output=0, shape=("batch",), element_bytes=4, saved_bytes=4),)


def nodes(occurrences, *choices):
    ways = tuple(Alternative(choice=choice, activations=KEPT) for choice in choices)
    return Cluster(occurrences=occurrences, alternatives=ways)


def plan_of(choice):
    return make_plan(choice, occurrences=3, saving_bytes=1, saving="batch")


@pytest.mark.parametrize(("count", "recomputed"), [(-1, 4), (1, 4), (3, 4), (100, 4), (0, 3)])
def test_a_count_does_not_limit_what_is_recomputed(count, recomputed):
    assert controller.count_recomputed(GELU, {GELU: count}, [nodes(3, GELU), nodes(1, GELU)]) == recomputed


def test_the_first_of_two_options_takes_effect():
    clusters = [nodes(2, WHOLE, PART), nodes(1, PART)]
    counts = {WHOLE: -1, PART: -1}
    assert controller.count_recomputed(WHOLE, counts, clusters) == 2
    assert controller.count_recomputed(PART, counts, clusters) == 1
    assert controller.count_recomputed(PART, {PART: -1}, clusters) == 3


def offer_of(choices, level=controller.CHOSEN, asked=()):
    """Offers these choices, where the environment has a level and asks for others."""
    plans = tuple(map(plan_of, choices))
    detection = build_detection(plans=plans, extra=codec.to_plain(controller.OrtDetection(layer_plans=plans)))
    return controller.make_offer(detection, level, dict.fromkeys(asked, -1), "1:0", {"batch": 4})


def test_an_offer_names_what_the_graph_does_not_offer_and_takes_the_options_up_to_a_level():
    offer = offer_of([GELU], asked=[GELU, PART])
    assert offer.is_on
    assert offer.requested == {GELU: -1}
    assert offer.unknown == (controller.write_row(PART),)
    assert offer_of([GELU, BOTH, PART], level=1).requested == {GELU: -1, BOTH: -1}
    assert offer_of([GELU, BOTH, PART], level=2).requested == {GELU: -1, PART: -1}
