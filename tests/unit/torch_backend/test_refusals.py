"""What is left as it is in a model, each with its reason, and that it computes what it did."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, StaticCache

from autorecompute.backends.torch.detection import detect
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.options import CHECKPOINT, DROP
from autorecompute.backends.torch.refusals import Reason, Refusal, RefusedModelError, refusals_of_model
from autorecompute.plans import Choice
from stand_ins.surveyed import detect_in
from tiny_models import Training, cross_entropy, differences, make, own_loss


def reason_of(found, place):
    """Why a place is left as it is."""
    return next((refusal.reason for refusal in found.refusals if refusal.place == place), None)


class Own(nn.Module):
    """Four blocks, each of a kind that a test gives."""

    def __init__(self, block):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        """Class scores."""
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Block(nn.Module):
    """Two layers around an activation."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        """As many features as it gets."""
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Plain(nn.Module):
    """Nothing but a product."""

    def forward(self, x):
        """Twice what it gets."""
        return x * 2


def own(block):
    """A model of such blocks with a batch."""
    torch.manual_seed(0)
    return Training(Own(block), {"x": torch.randn(4, 8), "y": torch.randint(0, 10, (4,))}, cross_entropy)


def test_the_blocks_that_a_script_recomputes_itself_are_kept():
    """A checkpoint of the script's own is tuned around, and its gradients stay what they are."""

    class Checkpointed(Block):
        def forward(self, x):
            return checkpoint(lambda x: x + self.down(functional.gelu(self.up(self.norm(x)))), x, use_reentrant=False)

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Own(Checkpointed), Own(Block)

        def forward(self, x):
            return self.second(self.first(x)[:, :8])

    training = own(Block)
    training.model = Mixed()
    found = detect_in(training)
    assert reason_of(found, "first.blocks.*.up") is Reason.OWN_CHECKPOINT
    assert not any(site.name.startswith("first.blocks.*.") for site in found.sites)
    expected = training.gradients()
    found.switchboard(training.model).set([Choice(site.name, DROP) for site in found.sites if DROP in site.options])
    assert differences(training.gradients(), expected) == []


class Prefixed(nn.Module):
    """A Llama that is given keys and values with its tokens."""

    def __init__(self, make_cache):
        super().__init__()
        self.model, self._make_cache = make("llama").model, make_cache

    def forward(self, input_ids, labels):
        """Its output."""
        return self.model(input_ids, labels=labels, use_cache=True, past_key_values=self._make_cache(input_ids))


def memory_for_all(tokens):
    """A cache that has its memory from the start."""
    return StaticCache(make("llama").model.config, len(tokens), 32)


def prefix(tokens):
    """Keys and values of two layers, as a trained prefix has them."""
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.ones(len(tokens), 2, 3, 16), torch.ones(len(tokens), 2, 3, 16), layer)
    return cache


@pytest.mark.parametrize("make_cache", [memory_for_all, prefix])
def test_a_cache_that_holds_something_is_refused(make_cache):
    """What reads it cannot do without, and the sentence says what to do; all else has its plans."""
    batch = make("llama").batch
    training = Training(Prefixed(make_cache), batch, own_loss)
    found = detect(training.model, (), batch)
    assert reason_of(found, "model.model.layers.*") is Reason.CACHE
    assert reason_of(found, "model.model.layers.*.self_attn") is Reason.CACHE
    assert "use_cache=False" in str(Refusal(Reason.CACHE, "model.model.layers.*"))
    assert "model.model.layers.*.mlp" in {site.name for site in found.sites}


def test_a_module_that_changes_its_input_is_refused_and_the_block_around_it_is_not():
    """ReLU in place cannot run again alone."""
    found = detect_in(make("resnet"))
    assert reason_of(found, "layer*.*.relu") is Reason.INPLACE
    assert "layer*.*" in {site.name for site in found.sites}


def test_a_module_that_returns_no_tensor_is_refused():
    """What gives gradients nothing to go back through is left alone."""

    class Odd(Block):
        def __init__(self):
            super().__init__()
            self.shape = nn.Module()
            self.shape.forward = None
            self.sizes = Sizes()

        def forward(self, x):
            return super().forward(x)[: self.sizes(x)[0]]

    class Sizes(nn.Module):
        def forward(self, x):
            return tuple(x.shape)

    assert reason_of(detect_in(own(Odd)), "blocks.*.sizes") is Reason.OUTPUT


@pytest.mark.parametrize(
    ("make_model", "reason"),
    [
        (lambda: torch.jit.script(Plain()), Reason.SCRIPTED),
        (lambda: nn.Sequential(Plain(), torch.jit.script(Plain())), Reason.SCRIPTED),
        (lambda: type("ORTModule", (nn.Linear,), {"__module__": "onnxruntime.training"})(2, 2), Reason.ORTMODULE),
        (lambda: type("FSDPModule", (nn.Linear,), {"__module__": "torch.distributed.fsdp"})(2, 2), Reason.SHARDED),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_that_others_run_is_refused_whole(make_model, reason):
    """One sentence says why nothing of the model can be recomputed."""
    model = make_model()
    assert [refusal.reason for refusal in refusals_of_model(model)] == [reason]
    assert name_of(model).startswith(type(model).__name__)
    with pytest.raises(RefusedModelError, match="The model"):
        detect(model, (torch.ones(1, 2),), {})


@pytest.fixture
def alone(unused_port):
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{unused_port}", rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_a_model_that_is_spread_over_ranks_is_refused_whole(alone):
    """Under fully_shard of parts alone, and with parameters that tensor parallelism has spread."""
    shards, parallel = (nn.Sequential(Block(), Block()) for _ in range(2))
    fully_shard(shards[0], mesh=alone)
    parallelize_module(parallel[0], alone, {"up": ColwiseParallel()})
    for model, reason in ((shards, Reason.SHARDED), (parallel, Reason.TENSOR_PARALLEL)):
        with pytest.raises(RefusedModelError) as raised:
            detect(model, (torch.randn(4, 8),), {})
        assert raised.value.refusal.reason is reason


def test_a_sharded_model_offers_its_modules_and_is_left_as_it_was(alone):
    """Parameters that are gathered for a call are no activations, and those of the next step are shards again."""
    plain, shards = (nn.Sequential(*(Block() for _ in range(3))) for _ in range(2))
    for block in shards:
        fully_shard(block, mesh=alone)
    fully_shard(shards, mesh=alone)
    inputs = (torch.randn(4, 8),)
    found, without = detect(shards, inputs, {}), detect(plain, inputs, {})
    assert {option for site in found.sites for option in site.options} <= {"checkpoint", "keep_matmul", "every_2nd"}
    assert Reason.SHARDED_OPERATORS in [refusal.reason for refusal in found.refusals]
    assert found.saved == without.saved
    assert all(hasattr(parameter, "to_local") for parameter in shards.parameters())
    shards(*inputs).sum().backward()
    assert all(parameter.grad is not None for parameter in shards.parameters())


def test_gradients_of_a_sharded_model_are_compared_and_those_it_has_are_kept(alone):
    """A config that computes something else is found out, in a step too that only accumulates."""
    shards = nn.Sequential(*(Block() for _ in range(3)))
    for block in shards:
        fully_shard(block, mesh=alone)
    fully_shard(shards, mesh=alone)
    inputs = (torch.randn(4, 8),)
    shards(*inputs).sum().backward()
    kept = [parameter.grad.to_local().clone() for parameter in shards.parameters()]
    board = detect(shards, inputs, {}).switchboard(shards)
    shards.set_requires_gradient_sync(False)
    assert check_gradients(shards, board, [Choice("*", "checkpoint")], inputs, {}).agrees

    def spoil(_module, given):
        return (given[0] * (3 if torch._C._current_graph_task_id() != -1 else 1),)

    shards[1].up.register_forward_pre_hook(spoil)
    check = check_gradients(shards, board, [Choice("*", "checkpoint")], inputs, {})
    assert (check.agrees, check.worst > 0) == (False, True)
    now = [parameter.grad.to_local() for parameter in shards.parameters()]
    assert all(torch.equal(one, other) for one, other in zip(kept, now, strict=True))


def test_a_model_whose_result_is_no_tensor_is_refused_whole():
    """There is nothing that gradients could go back through."""

    class Number(Block):
        def forward(self, x):
            return super().forward(x).sum().item()

    with pytest.raises(RefusedModelError, match="The model returns no tensor"):
        detect(Number(), (torch.randn(4, 8),), {})


def test_a_compiled_part_is_kept_and_the_rest_is_not():
    """What torch.compile runs is tuned around, bit for bit."""

    class Half(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Own(Block), Own(Block)
            self.first.compile(backend="eager")

        def forward(self, x):
            return self.second(self.first(x)[:, :8])

    training = own(Block)
    training.model = Half()
    expected = training.gradients()
    found = detect_in(training)
    assert reason_of(found, "first") is Reason.COMPILED
    offered = {site.name for site in found.sites}
    assert not any(name.startswith("first") for name in offered)
    assert "second.blocks.*" in offered
    board = found.switchboard(training.model)
    board.set([Choice(site.name, DROP) for site in found.sites if DROP in site.options])
    assert differences(training.gradients(), expected) == []
    board.set([Choice("second.blocks.*", CHECKPOINT)])
    assert differences(training.gradients(), expected) == []


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_the_checkpoints_that_transformers_switches_on_are_kept(use_reentrant):
    """A model after gradient_checkpointing_enable() is tuned around its blocks, and says so."""
    training = make("gpt2")
    training.model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    found = detect_in(training)
    assert reason_of(found, "transformer.h.*") is Reason.OWN_CHECKPOINT
    assert not any(site.name.startswith("transformer.h.*") for site in found.sites)
    expected = training.gradients()
    found.switchboard(training.model).set([Choice(site.name, site.options[0]) for site in found.sites])
    assert differences(training.gradients(), expected) == []


def test_frozen_blocks_are_left_out_and_those_behind_them_are_not():
    """Fine-tuning freezes the first blocks: gradients go back through the others only."""
    training = own(Block)
    for block in training.model.blocks[:2]:
        block.requires_grad_(False)
    expected = training.gradients()
    found = detect_in(training)
    (site,) = (site for site in found.sites if site.name == "blocks.*" and CHECKPOINT in site.options)
    assert site.occurrences == ("blocks.2", "blocks.3")
    assert reason_of(found, "blocks.*") is None
    found.switchboard(training.model).set([Choice("blocks.*", CHECKPOINT)])
    assert differences(training.gradients(), expected) == []


def test_blocks_that_run_once_without_gradients_first_are_offered():
    """A cycle before the one that is trained is no checkpoint of the script's."""

    class Recycling(Own):
        def forward(self, x):
            with torch.no_grad():
                for block in self.blocks:
                    x = block(x)
            return super().forward(x)

    training = own(Block)
    training.model = Recycling(Block)
    expected = training.gradients()
    found = detect_in(training)
    assert "blocks.*" in {site.name for site in found.sites if CHECKPOINT in site.options}
    assert reason_of(found, "blocks.*") is None
    found.switchboard(training.model).set([Choice("blocks.*", CHECKPOINT)])
    assert differences(training.gradients(), expected) == []


def test_hooks_of_the_script_on_all_tensors_are_left_alone():
    """Under save_on_cpu nothing of ours is offered."""
    training = own(Block)
    with torch.autograd.graph.save_on_cpu(), pytest.raises(RefusedModelError, match="under hooks of the script"):
        detect_in(training)


def test_a_model_that_takes_gradients_in_its_forward_is_told():
    """As one that computes forces from an energy does: the probe has let go of what its backward pass reads."""

    class Forces(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)))
            self.last = nn.Linear(4, 1)

        def forward(self, places):
            places = places.requires_grad_()
            energy = self.last(self.blocks(places))
            return torch.autograd.grad(energy.sum(), places, create_graph=True)[0] + energy

    with pytest.raises(RefusedModelError, match="takes gradients inside its forward"):
        detect(Forces(), (torch.randn(4, 4),), {})


def test_a_failed_forward_leaves_the_model_as_it_was():
    """What the model raises is raised, and its classes are plain again."""
    training = own(Block)
    before = vars(Block)["forward"]
    with pytest.raises(RuntimeError):
        detect(training.model, (torch.randn(4, 7),), {})
    assert vars(Block)["forward"] is before
