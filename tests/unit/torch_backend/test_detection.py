"""What is found in a model before its first step, and that nothing is left of looking."""

from __future__ import annotations

import contextlib
import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.detection import RefusedModelError, detect
from autorecompute.backends.torch.gradients import check_gradients
from autorecompute.backends.torch.interception import around_of
from autorecompute.backends.torch.options import CHECKPOINT, DROP, KEEP_MATMUL
from autorecompute.backends.torch.refusals import Reason, Refusal, refusals_of_model
from autorecompute.backends.torch.rewriting import Rewrite
from autorecompute.backends.torch.structure import structure_of
from autorecompute.plans import Choice
from tiny_models import Training, call_of, cross_entropy, differences, make, own_loss, tokens


def detect_in(training):
    """What is found with the model's own call."""
    return detect(training.model, *call_of(training))


def reason_of(found, place):
    """Why a place is left as it is."""
    return next((refusal.reason for refusal in found.refusals if refusal.place == place), None)


def test_training_goes_on_as_if_nobody_had_looked(training):
    """Two steps after a detection have the losses, weights, buffers and random numbers of two steps without one."""

    def train(training, *, look):
        torch.manual_seed(3)
        np.random.seed(3)  # noqa: NPY002
        if look:
            detect_in(training)
        optimizer = torch.optim.SGD(training.model.parameters(), 0.1)
        losses = []
        for _ in range(2):
            losses.append(training.loss(training.model, training.batch))
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        state = dict(training.model.state_dict())
        return state | {"losses": torch.stack(losses), "next": torch.rand(1), "numpy": torch.tensor(np.random.rand())}  # noqa: NPY002

    assert differences(train(copy.deepcopy(training), look=False), train(training, look=True)) == []


@pytest.mark.parametrize("bfloat16", [False, True])
def test_every_site_gives_the_bits_of_the_plain_step(training, bfloat16):
    """Each option of each site alone, and all operators together, also under autocast; nothing is missed."""

    def around():
        return torch.autocast("cpu", torch.bfloat16) if bfloat16 else contextlib.nullcontext()

    with around():
        found = detect_in(training)
    before = copy.deepcopy(training.model.state_dict())
    expected = training.gradients(around=around())
    board = found.switchboard(training.model)
    alone = [[Choice(site.name, option)] for site in found.sites for option in site.options]
    operators = [Choice(site.name, DROP) for site in found.sites if DROP in site.options]
    wrong = {}
    for choices in (*alone, operators):
        training.model.load_state_dict(before)
        board.set(choices)
        wrong[tuple(choices)] = differences(training.gradients(around=around()), expected)
    assert {choices: names for choices, names in wrong.items() if names} == {}
    rewrites = [
        around
        for effect in board.effects
        for around in around_of(training.model.get_submodule(effect.path))
        if isinstance(around, Rewrite)
    ]
    assert bool(rewrites) == bool(operators)
    assert [rewrite.missed for rewrite in rewrites] == [0] * len(rewrites)


@pytest.mark.parametrize(
    ("name", "sites"),
    [
        ("gpt2", ["mlp.act/mul", "mlp.act/add", "mlp.act/tanh", "ln_1/layer_norm", "ln_2/layer_norm"]),
        ("llama", ["mlp/mul", "mlp.act_fn/silu", "input_layernorm/mul", "post_attention_layernorm/mul"]),
        ("bert", ["intermediate.intermediate_act_fn/gelu", "attention.self/safe_softmax"]),
        ("vit", ["layernorm_before/layer_norm", "attention.attention/dropout_mask"]),
        ("encoder", ["norm2/layer_norm", "dropout/mul", "self_attn/scaled_dot_product_attention"]),
        ("resnet", ["relu/relu"]),
    ],
)
def test_the_operators_of_a_model_are_found(name, sites):
    """Activations, norms, products, attention and dropout are sites of every block."""
    training = make(name)
    found = detect_in(training)
    block = found.structure.group_of(found.structure.units[0])
    units = len(found.structure.units)
    occurrences = {site.name: len(site.occurrences) for site in found.sites}
    assert {site: occurrences.get(f"{block}.{site}") for site in sites} == dict.fromkeys(sites, units)
    assert found.blocks == (block,)


def saved_bytes(training, board, choices):
    """What a forward pass holds until its backward pass, beside parameters and inputs."""
    fixed = [*training.model.parameters(), *training.model.buffers(), *training.batch.values()]
    known = {tensor.untyped_storage()._cdata for tensor in fixed}
    board.set(choices)
    loss = training.loss(training.model, training.batch)
    found, nodes, todo = {}, set(), [loss.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in nodes:
            continue
        nodes.add(node)
        todo += [following for following, _ in node.next_functions]
        for name in dir(node):
            value = getattr(node, name) if name.startswith("_saved_") else None
            if isinstance(value, torch.Tensor):
                found[value.untyped_storage()._cdata] = value.untyped_storage()
    return sum(storage.nbytes() for address, storage in found.items() if address not in known)


@pytest.mark.parametrize("name", ["gpt2", "llama", "vit"])
def test_the_saving_of_a_module_is_what_a_forward_pass_no_longer_holds(name):
    """The stated saving of a site at a batch twice as large is what is let go there."""
    found = detect_in(make(name))
    larger = make(name, batch=8)
    again = detect_in(larger)
    assert again.saved > found.saved
    for site in found.sites:
        stated = found.savings[site.name].at(8)
        assert stated == pytest.approx(again.savings[site.name].at(8), rel=1e-6), site.name


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


def test_a_cache_in_training_is_refused():
    """A Llama that is given its default cache has no plans for what writes it, and says what to do."""
    training = make("llama")
    training.batch = {**training.batch, "use_cache": True}
    found = detect_in(training)
    assert reason_of(found, "model.layers.*") is Reason.CACHE
    assert reason_of(found, "model.layers.*.self_attn") is Reason.CACHE
    assert "use_cache=False" in str(Refusal(Reason.CACHE, "model.layers.*"))
    assert "model.layers.*.mlp" in {site.name for site in found.sites}


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
        (lambda: type("ORTModule", (nn.Linear,), {"__module__": "onnxruntime.training"})(2, 2), Reason.ORTMODULE),
        (lambda: type("FSDPModule", (nn.Linear,), {"__module__": "torch.distributed.fsdp"})(2, 2), Reason.SHARDED),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_that_others_run_is_refused_whole(make_model, reason):
    """One sentence says why nothing of the model can be recomputed."""
    model = make_model()
    assert [refusal.reason for refusal in refusals_of_model(model)] == [reason]
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


def test_hooks_of_the_script_on_all_tensors_are_left_alone():
    """Under save_on_cpu nothing of ours is offered."""
    training = own(Block)
    with torch.autograd.graph.save_on_cpu(), pytest.raises(RefusedModelError, match="recomputed by the script"):
        detect_in(training)


def test_a_failed_forward_leaves_the_model_as_it_was():
    """What the model raises is raised, and its classes are plain again."""
    training = own(Block)
    before = vars(Block)["forward"]
    with pytest.raises(RuntimeError):
        detect(training.model, (torch.randn(4, 7),), {})
    assert vars(Block)["forward"] is before


def test_units_of_an_encoder_and_a_decoder_are_told_apart():
    """Both stacks of a T5 are units, and parts in mixed lists keep their number."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        num_layers=2, num_decoder_layers=3, d_model=32, d_kv=8, d_ff=64, num_heads=2, vocab_size=100, use_cache=False
    )
    config.decoder_start_token_id = 0
    model = T5ForConditionalGeneration(config)
    structure = structure_of(model)
    assert [structure.group_of(unit) for unit in structure.units] == ["encoder.block.*"] * 2 + ["decoder.block.*"] * 3
    assert len(structure.groups["decoder.block.*.layer.2"]) == 3
    training = Training(model.train(), tokens(100, 2, 8), own_loss)
    found = detect_in(training)
    expected = training.gradients()
    board = found.switchboard(model)
    board.set([Choice(site.name, DROP) for site in found.sites if DROP in site.options])
    assert differences(training.gradients(), expected) == []
    board.set([Choice("encoder.block.*", CHECKPOINT), Choice("decoder.block.*", KEEP_MATMUL, 2)])
    assert differences(training.gradients(), expected) == []


def test_a_model_in_which_nothing_repeats_has_plans():
    """Its modules are sites each alone, and so are its operators."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 10))
    training = Training(model, {"x": torch.randn(4, 8), "y": torch.randint(0, 10, (4,))}, cross_entropy)
    found = detect_in(training)
    operators = [Choice(site.name, DROP) for site in found.sites if DROP in site.options]
    assert {choice.site for choice in operators} == {"1/gelu", "2/layer_norm"}
    expected = training.gradients()
    found.switchboard(model).set(operators)
    assert differences(training.gradients(), expected) == []
