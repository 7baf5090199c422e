"""What is given out for compiled models: files of plans, the environment, and a file of torch alone."""

import copy

import pytest
import torch

from autorecompute.backends.torch.compiled.detection import CHOICE
from autorecompute.backends.torch.compiled.forms import original_of
from autorecompute.backends.torch.controller import script
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.forecast.plans_file import PlansFile
from autorecompute.backends.torch.switch.applying import apply, apply_in_first_step
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from compiled_models import COMPILING, Blocks, batch, whole

pytestmark = COMPILING

BLOCKS, UP = "blocks.*:checkpoint", "blocks.*.up/addmm"
UNDER = f"graph:budget_0.1_keep_{UP}"


@pytest.fixture
def plans(tmp_path):
    def write(model, text):
        file = tmp_path / "plans.json"
        file.write_text(PlansFile(config=Config.parse([text]), model=name_of(model)).text)
        return file

    return write


@pytest.mark.parametrize(
    ("text", "budget", "chosen", "cluster"),
    [
        ("graph:budget_0.5", 0.5, [None] * 3, ""),
        (f"{BLOCKS}:1", 1.0, ["checkpoint", None, None], ""),
        (f"{UP}:recompute", 1.0, [None] * 3, UP),
        ("blocks.*:keep_up/addmm", 1.0, ["keep_up/addmm"] * 3, UP),
        (UNDER, 0.1, [None] * 3, UP),
    ],
)
def test_plans_are_applied_to_a_compiled_model_at_once(plans, text, budget, chosen, cluster):
    """Without a look at it: what is compiled from then on has them."""
    model = whole()
    apply(model, plans(model, text))
    assert torch._functorch.config.activation_memory_budget == budget
    assert [vars(block).get(CHOICE) for block in original_of(model).blocks] == chosen
    marks = torch._inductor.config.joint_custom_post_pass
    assert cluster in str(marks and marks.uuid())


def test_plans_of_a_compiled_model_are_for_no_other_and_one_that_it_does_not_offer_is_named(plans):
    model = whole()
    with pytest.raises(UsageError, match=r"does not offer blocks\.\*:drop"):
        apply(model, plans(model, "blocks.*:drop"))
    model = Blocks()
    with pytest.raises(UsageError, match=r"another model \(Blocks \w+ compiled\)"):
        apply(model, plans(torch.compile(copy.deepcopy(model)), BLOCKS))


def test_plans_from_the_environment_hold_for_every_step():
    """Calls are no longer followed once they are on, and compiled code must not ask who follows it."""
    roots = apply_in_first_step(PlansFile(config=Config.parse([f"{BLOCKS}:1"])))
    try:
        model = whole()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(batch(2)).backward()
            optimizer.step()
    finally:
        roots.uninstall()
    assert [vars(block).get(CHOICE) for block in original_of(model).blocks] == ["checkpoint", None, None]


def test_a_budget_can_be_had_from_torch_alone():
    model, names = whole(), {}
    exec(script(Config.parse(["graph:budget_0.1"]), {"model": name_of(model)}), names)  # noqa: S102 (what users run)
    names["apply_recompute"](model)
    assert torch._functorch.config.activation_memory_budget == 0.1
    model(batch(2)).backward()
    with pytest.raises(ValueError, match="compiled model"):
        names["apply_recompute"](Blocks())


def test_two_lines_of_torch_are_all_that_a_model_without_random_numbers_needs():
    model = torch.compile(Blocks().eval())
    source = script(Config.parse(["graph:budget_0.1"]), {"model": name_of(model)})
    lines = [line.removeprefix("#   ") for line in source.splitlines() if line.startswith("#   ")]
    assert lines == ["import torch._functorch.config", "torch._functorch.config.activation_memory_budget = 0.1"]

    def gradient():
        torch._dynamo.reset()
        model.zero_grad()
        model(batch(2)).backward()
        return original_of(model).blocks[0].up.weight.grad.clone()

    expected = gradient()
    exec("\n".join(lines), {})  # noqa: S102 (what users paste)
    torch.testing.assert_close(gradient(), expected)


@pytest.mark.parametrize("text", [BLOCKS, f"{UP}:recompute", UNDER])
def test_other_plans_of_a_compiled_model_need_the_package(text):
    with pytest.raises(UsageError, match="autorecompute run"):
        script(Config.parse([text]), {"model": name_of(whole())})
