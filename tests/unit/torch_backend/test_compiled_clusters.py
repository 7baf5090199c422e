"""Clusters of a compiled model's operators that are made again, and what its graph tells of the peak."""

import pytest
import torch

from autorecompute.backends.torch.applying import apply
from autorecompute.backends.torch.compiled.clusters import clusters_of, groups_of
from autorecompute.backends.torch.compiled.detection import board_of, detect_compiled
from autorecompute.backends.torch.compiled.lifetimes import peak_of
from autorecompute.backends.torch.compiled.marks import Marks, Tags
from autorecompute.backends.torch.compiled.partitions import LEAST_SHARE
from autorecompute.backends.torch.compiled.steps import trace_step
from autorecompute.backends.torch.controller import script
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.plans_file import PlansFile
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.structure import structure_of
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from compiled_models import COMPILING, Blocks, batch, live_bytes

pytestmark = COMPILING

UP, DROPPED = "blocks.*.up/addmm:recompute", "blocks.*.dropout/mul:recompute"
BLOCKS, BUDGET = "blocks.*:checkpoint", "graph:budget_0.1"


def test_clusters_that_the_compiler_keeps_are_plans(compiled_blocks):
    """By the group of their module and their kind; each of them has the compiler keep less than by itself."""
    _, found, board = compiled_blocks
    space = space_of(found, board, None)
    plans = {plan.id: plan for plan in space.plans if plan.option == "recompute"}
    assert {UP, DROPPED} <= plans.keys()
    none = next(peak for peak in found.compiled_peaks if peak.config.is_none)
    assert all(plan.saving_bytes >= LEAST_SHARE * none.kept_bytes for plan in plans.values())
    assert all(plan.occurrences == 1 and not plan.counts for plan in plans.values())


def test_what_is_drawn_by_chance_is_in_no_cluster():
    """It is drawn once, and kept by its seeds or as it is."""
    step, _ = trace_step(torch.compile(Blocks()), (batch(),), {})
    groups = groups_of(structure_of(Blocks()))
    nodes = [node for cluster in clusters_of(step.graphs[0].module.graph, groups).values() for node in cluster]
    assert nodes
    assert not any("inductor_seeds" in str(node.target) for node in nodes)


def test_budgets_and_whole_checkpoints_leave_clusters_nothing_to_do(compiled_blocks):
    """A budget is about the whole graph; of three blocks two that are checkpointed leave one with its operators."""
    _, found, board = compiled_blocks
    space = space_of(found, board, None)
    by_id = {plan.id: plan for plan in space.plans}
    up = Config.of([by_id[UP]])
    assert not space.with_plan(up, by_id[BUDGET]).has(by_id[UP])
    assert not space.with_plan(up, by_id[BLOCKS]).has(by_id[UP])
    both = Config.parse([UP, f"{BLOCKS}:2"])
    assert len(board.resolve(both.choices)) == 3
    assert len(board.resolve(Config.parse([UP, BLOCKS]).choices)) == 3


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param([UP], marks=pytest.mark.thorough),
        pytest.param([DROPPED], marks=pytest.mark.thorough),
        [UP, DROPPED],
        [UP, f"{BLOCKS}:1"],
        [DROPPED, "blocks.*:keep_matmul:2"],
    ],
    ids=str,
)
def test_gradients_are_those_of_the_compiled_model(compiled_blocks, texts):
    """With dropout on, alone and beside checkpoints."""
    model, _, board = compiled_blocks
    check = check_gradients(model, board, Config.parse(texts).choices, (batch(),), {})
    assert check.agrees, check


def test_peaks_from_the_graph_are_those_of_steps(compiled_blocks):
    """Without a step, within a fifth: which kernels the compiler makes is guessed."""
    model, found, board = compiled_blocks
    expected = {tuple(peak.config.texts): peak.peak_bytes for peak in found.compiled_peaks}
    for texts in ([], [DROPPED], [BUDGET], [BLOCKS]):
        assert expected[tuple(texts)] == pytest.approx(live_bytes(model, board, texts), rel=0.2)


def test_work_grows_with_what_is_made_again(compiled_blocks):
    """Beyond what the compiler makes again by itself."""
    _, found, _ = compiled_blocks
    work = {tuple(peak.config.texts): peak.work for peak in found.compiled_peaks}
    assert work[()] == 0 < work[DROPPED,] < work[f"{BLOCKS}:1",] < work[BLOCKS,] < 1


def test_a_loss_outside_of_the_graph_is_counted():
    """What the script makes of a result is alive while all is kept."""
    graphs = [
        trace_step(torch.compile(Blocks(has_loss=has_loss)), (batch(),), {})[0].cut() for has_loss in (True, False)
    ]
    inside, outside = map(peak_of, graphs)
    assert outside > inside


def test_a_graph_that_cannot_be_cut_leaves_the_blocks(monkeypatch):
    """A sentence says why there is nothing else."""

    def fail(*_args, **_options):
        raise RuntimeError("no cut of mine")

    monkeypatch.setattr("autorecompute.backends.torch.compiled.joint.min_cut_rematerialization_partition", fail)
    found, _ = detect_compiled(torch.compile(Blocks()), (batch(),), {})
    assert [site.name for site in found.sites] == ["blocks.*"]
    assert any("no cut of mine" in str(refusal) for refusal in found.refusals)


def test_clusters_are_applied_from_a_file(tmp_path):
    """Without a look at the model: the compiler marks them when it has its graph."""
    model = torch.compile(Blocks())
    file = tmp_path / "plans.json"
    file.write_text(PlansFile(config=Config.parse([UP]), model=name_of(model)).text)
    apply(model, file)
    assert any("up/addmm" in str(part) for part in torch._inductor.config.joint_custom_post_pass.uuid())
    model(batch()).backward()
    torch._inductor.config.joint_custom_post_pass = None


def test_other_clusters_make_other_code():
    """What is found in the compiler's caches is of the same clusters, and of modules of the same names."""
    groups = groups_of(structure_of(Blocks()))
    one, two = frozenset(["a/b"]), frozenset(["a/b", "c/d"])
    several = [
        Tags(groups=groups),
        *(Tags(groups=groups, **{how: names}) for how in ("recomputed", "kept", "spared") for names in (one, two)),
        Tags(recomputed=one),
    ]
    assert len({Marks(None, tags).uuid() for tags in several}) == len(several)
    assert Marks(None, Tags(groups=groups)).uuid() == Marks().uuid()


def test_torch_alone_cannot_do_clusters():
    """The sentence says what can."""
    with pytest.raises(UsageError, match="autorecompute run"):
        script(Config.parse([UP]), {"model": name_of(torch.compile(Blocks()))})
    with pytest.raises(ValueError, match="no site"):
        board_of(torch.compile(Blocks())).set(Config.parse([UP]).choices)
