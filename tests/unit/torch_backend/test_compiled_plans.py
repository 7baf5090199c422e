"""What is given out for compiled models: files of plans, the environment, and a file of torch alone."""

import copy

import pytest
import torch

from autorecompute.backends.torch.applying import FirstRoots, apply
from autorecompute.backends.torch.compiled.checkpoints import CHOICE
from autorecompute.backends.torch.compiled.forms import original_of
from autorecompute.backends.torch.controller import script
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.plans_file import PlansFile
from autorecompute.errors import UsageError
from autorecompute.plans import Config
from compiled_models import COMPILING, Blocks, batch

pytestmark = COMPILING

BLOCKS = "blocks.*:checkpoint"


@pytest.fixture
def plans(tmp_path):
    """Writes a file of plans."""

    def write(model, texts):
        file = tmp_path / "plans.json"
        file.write_text(PlansFile(config=Config.parse(texts), model=name_of(model)).text)
        return file

    return write


@pytest.mark.parametrize("texts", [["graph:budget_0.5"], [f"{BLOCKS}:1"]])
def test_plans_are_applied_to_a_compiled_model(plans, texts):
    """At once, as what is compiled from then on has them."""
    model = torch.compile(Blocks())
    apply(model, plans(model, texts))
    chosen = [CHOICE in vars(block) for block in original_of(model).blocks]
    budget = torch._functorch.config.activation_memory_budget
    assert (chosen, budget) == (([False] * 3, 0.5) if "graph" in texts[0] else ([True, False, False], 1.0))
    torch._functorch.config.activation_memory_budget = 1.0
    torch._inductor.config.joint_custom_post_pass = None


def test_plans_from_the_environment_hold_for_every_step():
    """Calls are no longer followed once they are on, and compiled code must not ask who follows it."""
    first = FirstRoots(PlansFile(config=Config.parse([f"{BLOCKS}:1"])))
    first.install()
    try:
        model = torch.compile(Blocks())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(batch()).backward()
            optimizer.step()
    finally:
        first._roots.uninstall()
    assert [vars(block).get(CHOICE) for block in original_of(model).blocks] == ["checkpoint", None, None]


def test_plans_of_a_compiled_model_are_for_no_other(plans):
    """The sentence names both."""
    model = Blocks()
    with pytest.raises(UsageError, match=r"another model \(Blocks \w+ compiled\)"):
        apply(model, plans(torch.compile(copy.deepcopy(model)), [BLOCKS]))


def test_a_budget_can_be_had_from_torch_alone():
    """The file that is emitted sets it, with what keeps random numbers; it has the two lines of a model without any."""
    model = torch.compile(Blocks())
    source = script(Config.parse(["graph:budget_0.1"]), {"model": name_of(model)})
    assert "import torch._functorch.config\n#   torch._functorch.config.activation_memory_budget = 0.1" in source
    names = {}
    exec(source, names)  # noqa: S102 (what users run)
    with (
        torch._functorch.config.patch(activation_memory_budget=1.0),
        torch._inductor.config.patch(joint_custom_post_pass=None),
    ):
        names["apply_recompute"](model)
        assert torch._functorch.config.activation_memory_budget == 0.1
        torch.manual_seed(2)
        model(batch()).backward()
    with pytest.raises(ValueError, match="compiled model"):
        names["apply_recompute"](Blocks())


def test_two_lines_are_all_that_a_model_without_random_numbers_needs():
    """Those that stand in the file: they are torch's own, and gradients are as before."""
    model = torch.compile(Blocks().eval())
    source = script(Config.parse(["graph:budget_0.1"]), {"model": name_of(model)})
    lines = [line.removeprefix("#   ") for line in source.splitlines() if line.startswith("#   ")]
    assert len(lines) == 2

    def gradient():
        torch._dynamo.reset()
        model.zero_grad()
        model(batch()).backward()
        return original_of(model).blocks[0].up.weight.grad.clone()

    with torch._functorch.config.patch(activation_memory_budget=1.0):
        expected = gradient()
        exec("\n".join(lines), {})  # noqa: S102 (what users paste)
        assert torch._functorch.config.activation_memory_budget == 0.1
        torch.testing.assert_close(gradient(), expected)


def test_a_checkpoint_of_a_compiled_model_needs_the_package():
    """There is no file of torch alone for it."""
    with pytest.raises(UsageError, match="autorecompute run"):
        script(Config.parse([BLOCKS]), {"model": name_of(torch.compile(Blocks()))})
