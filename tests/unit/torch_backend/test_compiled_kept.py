"""Clusters of a compiled model's operators that are kept where its compiler would make them again."""

import pytest
import torch

from autorecompute.backends.torch.applying import apply
from autorecompute.backends.torch.compiled.clusters import groups_of
from autorecompute.backends.torch.compiled.detection import board_of
from autorecompute.backends.torch.compiled.marks import Marks, Tags
from autorecompute.backends.torch.compiled.partitions import LEAST_WORK, Partitions
from autorecompute.backends.torch.compiled.steps import trace_step
from autorecompute.backends.torch.compiled.work import work_again
from autorecompute.backends.torch.controller import script
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.options import kept_cluster, label_of
from autorecompute.backends.torch.plans_file import PlansFile
from autorecompute.backends.torch.space import space_of
from autorecompute.backends.torch.structure import structure_of
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from compiled_models import COMPILING, Blocks, batch, live_bytes

pytestmark = COMPILING

UP = "blocks.*.up/addmm"
SPARED, UNDER = "blocks.*:keep_up/addmm", f"graph:budget_0.1_keep_{UP}"
BLOCKS, BUDGET = "blocks.*:checkpoint", "graph:budget_0.1"


def test_what_is_kept_lies_between_nothing_and_all_made_again(compiled_blocks):
    """In checkpointed blocks and under the least budget, the cluster that is the most work to make again."""
    _, found, board = compiled_blocks
    plans = {plan.id: plan for plan in space_of(found, board, None).plans}
    assert {SPARED, UNDER} <= plans.keys()
    assert plans[SPARED].counts
    known = {tuple(peak.config.texts): peak for peak in found.compiled_peaks}
    for kept, without in ((SPARED, BLOCKS), (UNDER, BUDGET)):
        assert known[kept,].work <= known[without,].work - LEAST_WORK
        assert known[without,].kept_bytes < known[kept,].kept_bytes < known[()].kept_bytes


def test_no_two_plans_keep_the_same():
    """What a budget, a checkpoint or another cluster comes to already is not offered again."""
    model = torch.compile(Blocks())
    step, _ = trace_step(model, (batch(),), {})
    groups = groups_of(structure_of(Blocks()))
    offer = Partitions(step, structure_of(Blocks()), None).offer([])
    kept = [step.cut().kept_names]
    for site, option in offer.options:
        tags = Tags(
            recomputed=frozenset([site] if option == "recompute" else []),
            kept=frozenset([kept_cluster(site, option)]),
            groups=groups,
        )
        marks = Marks(None, tags)
        value = float(option.split("_")[1]) if option.startswith("budget") else None
        kept.append(step.cut(lambda _call, marks=marks: marks, value).kept_names)
    assert len(set(kept)) == len(kept) > 5


def test_what_the_compiler_makes_again_by_itself_can_be_kept(compiled_blocks):
    """There is a cluster of which it makes something again: kept, there is less to make again."""
    _, found, board = compiled_blocks
    plans = [
        plan
        for plan in space_of(found, board, None).plans
        if plan.option.startswith("keep_") and plan.sites == {"graph"}
    ]
    assert plans
    step, _ = trace_step(torch.compile(Blocks()), (batch(),), {})
    groups = groups_of(structure_of(Blocks()))
    for plan in plans:
        marks = Marks(None, Tags(kept=frozenset([kept_cluster("graph", plan.option)]), groups=groups))
        assert work_again(step.cut(lambda _call, marks=marks: marks)) < work_again(step.cut())


@pytest.mark.parametrize("texts", [[f"{SPARED}:2"], [UNDER], ["graph:keep_blocks.*/erf"]], ids=str)
def test_gradients_are_those_of_the_compiled_model(texts):
    """With dropout on, for some blocks, under a budget, and by itself."""
    torch.manual_seed(0)
    model = torch.compile(Blocks())
    board = board_of(model, Config.parse(texts).choices)
    check = check_gradients(model, board, Config.parse(texts).choices, (batch()[:2],), {})
    assert check.agrees, check


def test_forecasts_are_those_of_steps(compiled_blocks):
    """Within a fifth: which kernels the compiler makes is guessed."""
    model, found, board = compiled_blocks
    expected = {tuple(peak.config.texts): peak.peak_bytes for peak in found.compiled_peaks}
    for text in (SPARED, UNDER):
        assert expected[text,] == pytest.approx(live_bytes(model, board, [text]), rel=0.2)


def test_what_is_kept_is_applied_from_a_file(tmp_path):
    """Without a look at the model; what it does not offer is named."""
    model = torch.compile(Blocks())
    file = tmp_path / "plans.json"
    for text in (SPARED, UNDER):
        file.write_text(PlansFile(config=Config.parse([text]), model=name_of(model)).text)
        apply(model, file)
        assert UP in str(torch._inductor.config.joint_custom_post_pass.uuid())
        torch._inductor.config.joint_custom_post_pass, torch._functorch.config.activation_memory_budget = None, 1.0
    file.write_text(PlansFile(config=Config.parse(["blocks.*:drop"]), model=name_of(model)).text)
    with pytest.raises(UsageError, match=r"does not offer blocks\.\*:drop"):
        apply(model, file)


def test_torch_alone_cannot_keep():
    """A budget that keeps a cluster is more than two lines."""
    with pytest.raises(UsageError, match="autorecompute run"):
        script(Config.parse([UNDER]), {"model": name_of(torch.compile(Blocks()))})


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
    """The cluster and, for people, the rest of it."""
    choice = next(iter(Config.parse([text]).choices))
    assert kept_cluster(choice.site, choice.option) == cluster
    assert label_of(choice.site, choice.option) == label
