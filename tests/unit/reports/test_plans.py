import dataclasses
import functools
import json
import re

import pytest

from autorecompute import codec
from autorecompute.backends.ortmodule.controller import CHOSEN, COMPROMISE, RECOMPUTE, OrtDetection, make_offer
from autorecompute.errors import UsageError
from autorecompute.plans import Activation, Alternative, Choice, Cluster, Plan
from autorecompute.reports.plans_json import Overview, Plans
from autorecompute.reports.plans_text import choose_dims, print_details, print_summary
from stand_ins.schemas import check
from unit.conftest import build_detection

NORM, WHOLE = Choice("LayerNormalization+", RECOMPUTE), Choice("Less+Cast+", RECOMPUTE)
PART, ODD = Choice("Cast+", COMPROMISE), Choice("NonZero+", RECOMPUTE)


def keeps(choice, *outputs):
    """An alternative that keeps these outputs: each its shape, and what else is to be told of it."""
    return Alternative(
        choice=choice,
        activations=tuple(
            Activation(output=place, **{"shape": shape, "element_bytes": 4, "saved_bytes": 4, **more})
            for place, (shape, more) in enumerate(outputs)
        ),
    )


CLUSTERS = (
    Cluster(
        occurrences=3, alternatives=(keeps(NORM, (("batch", "sequence", "64"), {}), (("batch", "sequence", "1"), {})),)
    ),
    Cluster(
        occurrences=2,
        alternatives=(
            keeps(WHOLE, (("batch", "8"), {"reuse_frequency": 2})),
            keeps(PART, (("batch", "8"), {"saved_bytes": 3})),
        ),
    ),
    Cluster(occurrences=1, alternatives=(keeps(ODD, (("empty_dim_param1",), {})),)),
)


def make_plan(choice, occurrences, saving_bytes, saving, **fields):
    figures = {"occurrences": occurrences, "saving_bytes": saving_bytes, "saving": saving, **fields}
    return Plan(choices=(choice,), label=choice.site, **figures)


PLANS = (
    make_plan(NORM, 3, 99840, "780*batch*sequence", stated="12*batch*sequence"),
    make_plan(WHOLE, 2, 512, "64*batch"),
    make_plan(PART, 2, 384, "48*batch"),
    make_plan(ODD, 1, None, "4*empty_dim_param1"),
)


def make_overview(counts=None, batch=None, asked=(), level=CHOSEN):
    detection = build_detection(
        plans=PLANS,
        clusters=CLUSTERS,
        extra=codec.to_plain(OrtDetection(layer_plans=PLANS[1:], layer_clusters=CLUSTERS[1:])),
        dims={"batch": 8, "sequence": 16},
        aliases={"batch": ("ids_dim0", "mask_dim0"), "sequence": ("ids_dim1",)},
    )
    dims = choose_dims(detection, batch, asked)
    return Overview(
        detection=detection,
        offer=make_offer(detection, level, counts or {}, "1:0", dims),
        dims=dims,
        command="autorecompute tune train.py --target-batch=32",
    )


@pytest.fixture
def text_of(lines_of):
    return lambda show, overview, width=200: "\n".join(lines_of(show, overview, width=width))


def rows_of(text):
    return [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]


def test_the_summary_has_a_row_for_each_plan_and_the_details_number_exclusive_options(text_of):
    text = text_of(print_summary, make_overview())
    assert "Memory Optimizer: OFF   level 0, probe config 1:0, config: none" in text
    rows = rows_of(text)
    assert ["1", "OFF", "LayerNormalization+:1", "3", "98 KiB", "2 KiB !"] in rows
    assert ["2", "OFF", "Less+Cast+:1", "2", "512 bytes"] in rows
    assert ["4", "OFF", "NonZero+:1", "1", "unknown"] in rows
    rows = rows_of(text_of(print_summary, make_overview(batch=32, asked=[("sequence", 32)])))
    assert ["1", "OFF", "LayerNormalization+:1", "3", "780 KiB", "12 KiB !"] in rows
    assert ["plan", "batch 8", "batch 16", "batch 32", "batch 64", "batch 128"] in rows
    assert ["2", "512 bytes", "1 KiB", "2 KiB", "4 KiB", "8 KiB"] in rows
    on = text_of(print_summary, make_overview({WHOLE: 1}))
    assert "Memory Optimizer: ON   level 0, probe config 1:0, config: Less+Cast+:1:1" in on
    assert ["2", "ON", "Less+Cast+:1", "2", "512 bytes"] in rows_of(on)
    rows = rows_of(text_of(print_details, make_overview({PART: -1})))
    assert rows[2] == [
        *("3", "1: 1", "LayerNormalization+", "disabled"),
        *("0", "[batch x sequence x 64]", "4", "100%", "-", "96 KiB"),
    ]
    assert rows[3] == ["1", "[batch x sequence x 1]", "4", "100%", "-", "2 KiB"]
    assert rows[4] == ["2", "1: 1", "Less+Cast+", "disabled", "0", "[batch x 8]", "4", "100%", "2", "512 bytes"]
    assert rows[5][:3] == ["2: 2", "Cast+", "enabled, requested -1"]
    assert rows[5][-3:] == ["75%", "-", "384 bytes"]


def test_formulas_and_names_of_the_training_system_are_details_and_the_command_is_never_broken(text_of):
    plain, detailed = (
        text_of(functools.partial(print_summary, is_detailed=each), make_overview()) for each in (False, True)
    )
    assert "780*batch*sequence" not in plain
    assert "ids_dim0" not in plain
    assert ["2", "OFF", "Less+Cast+:1", "2", "512 bytes", "64*batch"] in rows_of(detailed)
    assert "batch is ids_dim0, mask_dim0; sequence is ids_dim1" in detailed
    text = text_of(print_summary, make_overview())
    assert "savings at batch 8, sequence 16 (the first batch)" in text
    other = text_of(print_summary, make_overview(batch=32))
    assert "savings at batch 32, sequence 16; the first batch had batch 8, sequence 16" in other
    narrow = text_of(print_summary, make_overview(), width=30)
    assert narrow.splitlines()[-1] == "  autorecompute tune train.py --target-batch=32"


def test_a_graph_with_nothing_to_recompute_ends_in_a_sentence_and_a_level_shows_the_plans_within_layers(text_of):
    overview = make_overview()
    detection = dataclasses.replace(overview.detection, plans=(), clusters=())
    offer = make_offer(detection, CHOSEN, {}, "1:0", overview.dims)
    text = text_of(print_summary, dataclasses.replace(overview, detection=detection, offer=offer))
    assert "Nothing is worth recomputing" in text
    assert overview.command not in text
    assert text_of(print_details, dataclasses.replace(overview, offer=offer)) == ""
    overview = make_overview(level=1)
    status = {line.config: line.status for line in overview.lines()}
    assert "LayerNormalization+:1" not in status
    assert (status["Less+Cast+:1"], status["Cast+:2"]) == ("ON", "OFF")
    assert overview.offer.clusters == CLUSTERS[1:]


@pytest.mark.parametrize(
    ("counts", "problems"),
    [
        ({NORM: 3}, []),
        ({NORM: 1}, ["LayerNormalization+:1:1 asks for 1 of 3; ORT recomputes 3"]),
        ({WHOLE: -1, PART: -1}, ["Cast+:2:-1 asks for all of 2; ORT recomputes 0"]),
        ({Choice("Gelu+", RECOMPUTE): -1}, ["no plan Gelu+:1:-1 in this graph: ORT ignores it without a word"]),
    ],
)
def test_what_ort_does_otherwise_is_told(counts, problems):
    assert list(make_overview(counts).offer.problems) == problems


@pytest.mark.parametrize("asked", [[("length", 4)], [("ids_dim0", 4)], [("sequence", 1), ("ids_dim1", 2)]])
def test_a_dimension_that_is_unknown_or_given_twice_is_refused(asked):
    with pytest.raises(UsageError, match=asked[0][0].replace("ids_dim0", "batch")):
        make_overview(batch=8, asked=asked)


def test_json_is_as_the_schema_says_and_has_what_the_contract_asks_for():
    overview = make_overview({PART: -1}, batch=32)
    check("plans", text := codec.dumps(Plans.of([overview, overview])))
    plain = json.loads(text)
    first, *_, last = plain["plans"]
    assert first["config"] == "LayerNormalization+:1"
    assert (first["option"], first["frequency"]) == ("1", 3)
    assert (first["saving_bytes"], first["stated_bytes"], first["is_corrected"]) == (399360, 6144, True)
    assert first["saving_symbolic"] == "780*batch*sequence"
    assert first["saving_bytes_by_batch"]["128"] == 4 * 399360
    assert last["saving_bytes"] is None
    assert plain["dims"] == {"batch": 32, "sequence": 16}
    assert plain["first_batch_dims"]["batch"] == 8
    assert plain["versions"]["fake"] == "3.1"
