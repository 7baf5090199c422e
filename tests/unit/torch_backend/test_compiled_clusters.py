"""Graphs of compiled models: clusters of operators that are made again or kept, and what graphs tell of the peak."""

import functools

import pytest
import torch

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.compiled import partitions
from autorecompute.backends.torch.compiled.detection import board_of, choose
from autorecompute.backends.torch.compiled.joint import Marks, cluster_of, groups_of
from autorecompute.backends.torch.find.detection import space_of
from autorecompute.backends.torch.find.structure import structure_of
from autorecompute.backends.torch.forecast.records import kept_cluster, label_of
from autorecompute.plans import Config
from compiled_models import COMPILING, WAYS, Blocks, batch, live_bytes

pytestmark = COMPILING

UP, DROPPED = "blocks.*.up/addmm:recompute", "blocks.*.dropout/mul:recompute"
BLOCKS, BUDGET = "blocks.*:checkpoint", "graph:budget_0.1"
SPARED, UNDER = "blocks.*:keep_up/addmm", "graph:budget_0.1_keep_blocks.*.up/addmm"


@pytest.fixture(scope="module")
def traced():
    return functools.cache(lambda way: partitions.trace_step(WAYS[way](), (batch(),), {})[0])


@pytest.fixture(scope="module")
def groups():
    return groups_of(structure_of(Blocks()))


def cut(step, budget=None, **tags):
    marks = Marks(**tags)
    return step.cut(lambda _given: marks, budget)


def known_of(found):
    return {tuple(peak.config.texts): peak for peak in found.compiled_peaks}


@pytest.mark.parametrize(
    ("way", "graphs", "blocks"),
    [("broken", [0, 1], [{"0"}, {"0", "1", "2"}]), ("by_blocks", [0, 1, 1], [{"0"}, {"1"}, {"2"}])],
)
def test_all_graphs_of_a_step_are_found_in_the_order_in_which_they_run(traced, way, graphs, blocks):
    """By blocks there is one for the first, whose input needs no gradient, and one for the others."""
    step = traced(way)
    assert step.is_whole
    assert [graph for graph, _ in step.calls] == graphs
    assert [{name.split(".")[1] for name in parameters} for _, parameters in step.calls] == blocks


def test_clusters_are_plans_and_what_they_keep_lies_between_nothing_and_all_made_again(compiled_model):
    """In checkpointed blocks and under the least budget, the cluster that is the most work to make again is kept."""
    _, found, board = compiled_model
    plans = {plan.id: plan for plan in space_of(found, board, None).plans if plan.option == "recompute"}
    assert {UP, DROPPED} <= plans.keys()
    assert all(plan.saving_bytes >= partitions.LEAST_SHARE * known_of(found)[()].kept_bytes for plan in plans.values())
    assert all(plan.occurrences == 1 and not plan.counts for plan in plans.values())
    plans = {plan.id: plan for plan in space_of(found, board, None).plans}
    assert {SPARED, UNDER} <= plans.keys()
    assert plans[SPARED].counts
    known = known_of(found)
    for kept, without in ((SPARED, BLOCKS), (UNDER, BUDGET)):
        assert known[kept,].work <= known[without,].work - partitions.LEAST_WORK
        assert known[without,].kept_bytes < known[kept,].kept_bytes < known[()].kept_bytes


@pytest.mark.parametrize("compiled_model", ["broken"], indirect=True)
def test_a_broken_model_offers_what_a_whole_one_does(compiled_model):
    _, found, _ = compiled_model
    offered = {(site.name, option) for site in found.sites for option in site.options}
    assert {("graph", "budget_0.1"), ("blocks.*.up/addmm", "recompute"), ("blocks.*", "keep_up/addmm")} <= offered


def test_what_the_compiler_makes_again_by_itself_can_be_kept_and_no_two_plans_keep_the_same(
    traced, groups, compiled_model
):
    """What a budget, a checkpoint or another cluster comes to already is not offered again."""
    step = traced("whole")
    kept = [partitions.kept_names(step.cut())]
    for site, option in partitions.Partitions(step, structure_of(Blocks()), None).offer([])[0]:
        value = float(option.split("_")[1]) if option.startswith("budget") else None
        recomputed = frozenset([site] if option == "recompute" else [])
        marked = cut(step, value, recomputed=recomputed, kept=frozenset([kept_cluster(site, option)]), groups=groups)
        kept.append(partitions.kept_names(marked))
    assert len(set(kept)) == len(kept) > 5
    _, found, board = compiled_model
    plans = [plan for plan in space_of(found, board, None).plans if plan.id.startswith("graph:keep_")]
    assert plans
    for plan in plans:
        kept = cut(step, kept=frozenset([kept_cluster("graph", plan.option)]), groups=groups)
        assert partitions.work_again(kept) < partitions.work_again(step.cut())


def test_what_is_drawn_by_chance_is_in_no_cluster(traced, groups):
    """It is drawn once, and kept by its seeds or as it is."""
    graph = traced("whole").graphs[0].module.graph
    nodes = [node for node in graph.nodes if cluster_of(node, groups) is not None]
    assert nodes
    assert not any("inductor_seeds" in str(node.target) for node in nodes)


def test_budgets_and_whole_checkpoints_leave_clusters_nothing_to_do(compiled_model):
    """A budget is about the whole graph; of three blocks two that are checkpointed leave one with its operators."""
    _, found, board = compiled_model
    space = space_of(found, board, None)
    by_id = {plan.id: plan for plan in space.plans}
    up = Config.of([by_id[UP]])
    assert not space.with_plan(up, by_id[BUDGET]).has(by_id[UP])
    assert not space.with_plan(up, by_id[BLOCKS]).has(by_id[UP])
    for blocks in (f"{BLOCKS}:2", BLOCKS):
        assert len(board.resolve(Config.parse([UP, blocks]).choices)) == 3


@pytest.mark.cpp
@pytest.mark.parametrize(
    ("compiled_model", "texts"),
    [
        ("whole", [UP, DROPPED]),
        ("whole", [UP, f"{BLOCKS}:1"]),
        ("whole", [DROPPED, "blocks.*:keep_matmul:2"]),
        ("whole", [f"{SPARED}:2"]),
        ("whole", [BUDGET]),
        ("whole", [UNDER]),
        ("whole", ["graph:keep_blocks.*/erf"]),
        ("broken", [UP, f"{BLOCKS}:1"]),
        ("broken", [BUDGET]),
    ],
    ids=str,
    indirect=["compiled_model"],
)
def test_gradients_are_those_of_the_compiled_model(compiled_model, texts):
    """With dropout on: what is run again draws the same masks, also under a budget, where PyTorch draws others."""
    model, _, _ = compiled_model
    choices = Config.parse(texts).choices
    check = check_gradients(model, board_of(model, choices), choices, (batch(2),), {})
    assert check.agrees, check


@pytest.mark.cpp
@pytest.mark.parametrize(
    ("compiled_model", "configs"),
    [
        ("whole", [[], [DROPPED], [BUDGET], [BLOCKS], [SPARED], [UNDER]]),
        ("broken", [[], [BUDGET], [BLOCKS]]),
        ("by_blocks", [[], [f"{BLOCKS}:1"], [BLOCKS]]),
    ],
    ids=["whole", "broken", "by blocks"],
    indirect=["compiled_model"],
)
def test_forecasts_from_graphs_are_those_of_steps(compiled_model, configs):
    """Without a step, within a fifth: which kernels the compiler makes is guessed."""
    model, found, board = compiled_model
    known = known_of(found)
    for texts in configs:
        assert known[tuple(texts)].peak_bytes == pytest.approx(live_bytes(model, board, texts), rel=0.2), texts


def test_work_grows_with_what_is_made_again_and_a_loss_outside_of_the_graph_is_counted(compiled_model, traced):
    """Beyond what the compiler makes again by itself."""
    work = {texts: peak.work for texts, peak in known_of(compiled_model[1]).items()}
    assert work[()] == 0 < work[DROPPED,] < work[f"{BLOCKS}:1",] < work[BLOCKS,] < 1
    outside, _ = partitions.trace_step(torch.compile(Blocks(has_loss=False)), (batch(),), {})
    assert partitions.peak_of(outside.cut()) > partitions.peak_of(traced("whole").cut())


def test_other_clusters_make_other_code(groups):
    """What is found in the compiler's caches is of the same clusters, and of modules of the same names."""
    one, two = frozenset(["a/b"]), frozenset(["a/b", "c/d"])
    several = [
        Marks(groups=groups),
        *(Marks(groups=groups, **{how: names}) for how in ("recomputed", "kept", "spared") for names in (one, two)),
        Marks(recomputed=one),
    ]
    assert len({marks.uuid() for marks in several}) == len(several)
    assert Marks(groups=groups).uuid() == Marks().uuid()


def test_a_library_that_replaces_checkpoints_changes_nothing(monkeypatch):
    """As ONNX Runtime's import does: the graph stays whole, so that dropouts draw the same masks."""
    original = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr("torch.utils.checkpoint.checkpoint", functools.partial(original))
    model, graphs = Blocks(), []
    choose(model.blocks[0], "checkpoint")
    torch.compile(model, backend=lambda graph, _inputs: graphs.append(graph) or graph)(batch(2))
    choose(model.blocks[0], None)
    assert len(graphs) == 1


@pytest.mark.parametrize(
    ("text", "cluster", "label"),
    [
        ("h.*:keep_attn/bmm", "h.*.attn/bmm", "h.*, h.*.attn/bmm kept"),
        ("h.*:keep_/mul", "h.*/mul", "h.*, h.*/mul kept"),
        ("h.*:keep_matmul", "", "h.*, matrix products kept"),
        ("graph:keep_h.*/mul", "h.*/mul", "h.*/mul kept"),
        ("graph:budget_0.1_keep_h.*.attn/bmm", "h.*.attn/bmm", "budget 0.1, h.*.attn/bmm kept"),
        ("graph:budget_0.1", "", "budget 0.1"),
        ("h.*:checkpoint", "", "h.*"),
    ],
)
def test_a_choice_names_what_it_keeps(text, cluster, label):
    (choice,) = Config.parse([text]).choices
    assert kept_cluster(choice.site, choice.option) == cluster
    assert label_of(choice.site, choice.option) == label
