"""What is left as it is in a model, each with its reason, and that it computes what it did."""

import types

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
from torch.nn import functional
from transformers import DynamicCache, StaticCache

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.find.refusals import Reason, RefusalError, refusals_of_model, why_unsplittable
from autorecompute.backends.torch.forecast.records import CHECKPOINT, DROP
from autorecompute.backends.torch.switch.checkpoints import can_have_its_own
from autorecompute.plans import Choice
from stand_ins.surveyed import detect_in
from tiny_models import Training, cross_entropy, differences, make, of_transformers, own_loss, tokens


def reason_of(found, place):
    return next((refusal.reason for refusal in found.refusals if refusal.place == place), None)


def names_of(found):
    return {site.name for site in found.sites}


def drops_in(found):
    return [Choice(site.name, DROP) for site in found.sites if DROP in site.options]


def assert_same_gradients(training, found, *configs):
    board = found.switchboard(training.model)
    board.set([])
    expected = training.gradients()
    for choices in configs:
        assert choices
        board.set(choices)
        assert differences(training.gradients(), expected) == []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Own(nn.Module):
    def __init__(self, block=Block):
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(4))
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = Own(), Own()

    def forward(self, x):
        return self.second(self.first(x)[:, :8])


def own(make_model=Own):
    torch.manual_seed(0)
    return Training(make_model(), {"x": torch.randn(4, 8), "y": torch.randint(0, 10, (4,))}, cross_entropy)


class Prefixed(nn.Module):
    def __init__(self, make_cache):
        super().__init__()
        self.model, self._make_cache = make("llama").model, make_cache

    def forward(self, input_ids, labels):
        return self.model(input_ids, labels=labels, use_cache=True, cache=self._make_cache(input_ids))


def cache_with_memory_for_all(_):
    return StaticCache(make("llama").model.config, 32)


def cache_with_a_trained_prefix(tokens):
    cache = DynamicCache()
    for layer in range(2):
        cache.update(torch.ones(len(tokens), 2, 3, 16), torch.ones(len(tokens), 2, 3, 16), layer)
    return cache


@pytest.mark.parametrize("make_cache", [cache_with_memory_for_all, cache_with_a_trained_prefix])
def test_what_reads_a_cache_that_holds_something_is_refused_and_all_else_is_not(make_cache):
    training = Training(Prefixed(make_cache), make("llama").batch, own_loss)
    found = detect_in(training)
    assert reason_of(found, "model.model.layers.*") is Reason.CACHE
    assert reason_of(found, "model.model.layers.*.self_attn") is Reason.CACHE
    assert "use_cache=False" in str(RefusalError(Reason.CACHE, "model.model.layers.*"))
    assert "model.model.layers.*.mlp" in names_of(found)


def test_a_module_that_changes_its_input_is_refused_and_the_block_around_it_is_not():
    found = detect_in(make("resnet"))
    assert reason_of(found, "layer*.*.relu") is Reason.INPLACE
    assert "layer*.*" in names_of(found)


def test_a_module_that_returns_no_tensor_is_refused():
    class Sizes(nn.Module):
        def forward(self, x):
            return tuple(x.shape)

    class Odd(Block):
        def __init__(self):
            super().__init__()
            self.sizes = Sizes()

        def forward(self, x):
            return super().forward(x)[: self.sizes(x)[0]]

    assert reason_of(detect_in(own(lambda: Own(Odd))), "blocks.*.sizes") is Reason.OUTPUT


def graphed():
    """Return a model with a layer that ``torch.cuda.make_graphed_callables`` was given, which needs a card."""
    layer = nn.Linear(2, 2)
    layer.forward = types.FunctionType(layer.forward.__code__, {"__name__": "torch.cuda.graphs"})
    return nn.Sequential(layer)


@pytest.mark.parametrize(
    ("make_model", "reason"),
    [
        (graphed, Reason.GRAPHED),
        (lambda: torch.jit.script(nn.ReLU()), Reason.SCRIPTED),
        (lambda: nn.Sequential(nn.ReLU(), torch.jit.script(nn.ReLU())), Reason.SCRIPTED),
        (lambda: type("ORTModule", (nn.Linear,), {"__module__": "onnxruntime.training"})(2, 2), Reason.ORTMODULE),
        (lambda: type("FSDPModule", (nn.Linear,), {"__module__": "torch.distributed.fsdp"})(2, 2), Reason.SHARDED),
    ],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning", "ignore:.*torch.jit.*:FutureWarning")
def test_a_model_that_others_run_is_refused_whole(make_model, reason):
    model = make_model()
    assert [refusal.reason for refusal in refusals_of_model(model)] == [reason]
    assert name_of(model).startswith(type(model).__name__)
    with pytest.raises(RefusalError, match="The model"):
        detect(model, (torch.ones(1, 2),), {})


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def sharded(mesh, *, whole=True):
    model = nn.Sequential(*(Block() for _ in range(3)))
    for block in model:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh) if whole else model


def test_a_sharded_model_offers_its_modules_and_is_refused_whole_where_only_parts_are_sharded(alone):
    """Parameters that are gathered for a call are no activations, and those of the next step are shards again."""
    parallel = nn.Sequential(Block(), Block())
    parallelize_module(parallel[0], alone, {"up": ColwiseParallel()})
    for model, reason in ((sharded(alone, whole=False), Reason.SHARDED), (parallel, Reason.TENSOR_PARALLEL)):
        with pytest.raises(RefusalError) as raised:
            detect(model, (X,), {})
        assert raised.value.reason is reason
    shards = sharded(alone)
    found, without = detect(shards, (X,), {}), detect(nn.Sequential(*(Block() for _ in range(3))), (X,), {})
    assert {option for site in found.sites for option in site.options} <= {"checkpoint", "keep_matmul", "every_2nd"}
    assert Reason.SHARDED_OPERATORS in [refusal.reason for refusal in found.refusals]
    assert found.saved == without.saved
    assert all(hasattr(parameter, "to_local") for parameter in shards.parameters())
    shards(X).sum().backward()
    assert all(parameter.grad is not None for parameter in shards.parameters())


def test_gradients_of_a_sharded_model_are_compared_and_those_it_has_are_kept(alone):
    """A config that computes something else is found out, in a step too that only accumulates."""
    shards = sharded(alone)
    shards(X).sum().backward()
    kept = [parameter.grad.to_local().clone() for parameter in shards.parameters()]
    board = detect(shards, (X,), {}).switchboard(shards)
    shards.set_requires_gradient_sync(False)
    assert check_gradients(shards, board, [Choice("*", CHECKPOINT)], (X,), {}).agrees

    def spoil(_module, given):
        return (given[0] * (3 if torch._C._current_graph_task_id() != -1 else 1),)

    shards[1].up.register_forward_pre_hook(spoil)
    check = check_gradients(shards, board, [Choice("*", CHECKPOINT)], (X,), {})
    assert (check.agrees, check.worst > 0) == (False, True)
    now = [parameter.grad.to_local() for parameter in shards.parameters()]
    assert all(map(torch.equal, kept, now))


def test_a_compiled_part_is_kept_and_the_rest_is_not():
    training = own(Halves)
    training.model.first.compile(backend="eager")
    found = detect_in(training)
    assert reason_of(found, "first") is Reason.COMPILED
    assert not any(name.startswith("first") for name in names_of(found))
    assert_same_gradients(training, found, drops_in(found), [Choice("second.blocks.*", CHECKPOINT)])


def test_frozen_blocks_are_left_out_and_those_behind_them_are_not():
    training = own()
    training.model.blocks[:2].requires_grad_(False)
    found = detect_in(training)
    (site,) = (site for site in found.sites if site.name == "blocks.*" and CHECKPOINT in site.options)
    assert site.occurrences == ("blocks.2", "blocks.3")
    assert reason_of(found, "blocks.*") is None
    assert_same_gradients(training, found, [Choice("blocks.*", CHECKPOINT)])


class ForcesOfEnergy(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)), nn.Linear(8, 1))

    def forward(self, x):
        x = x.requires_grad_()
        energy = super().forward(x)
        return torch.autograd.grad(energy.sum(), x, create_graph=True)[0] + energy


class Number(Block):
    def forward(self, x):
        return super().forward(x).sum().item()


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [(Number, "The model returns no tensor"), (ForcesOfEnergy, "takes gradients inside its forward")],
)
def test_a_model_is_refused_whole_for_what_it_does_in_its_forward(kind, sentence):
    with pytest.raises(RefusalError, match=sentence):
        detect(kind(), (X.clone(),), {})


def test_nothing_is_offered_under_hooks_of_the_script_on_all_tensors():
    with torch.autograd.graph.save_on_cpu(), pytest.raises(RefusalError, match="own saved_tensors_hooks"):
        detect_in(own())


def test_a_failed_forward_leaves_the_model_as_it_was():
    before = vars(Block)["forward"]
    with pytest.raises(RuntimeError):
        detect(Own(), (torch.randn(4, 7),), {})
    assert vars(Block)["forward"] is before


def t5():
    """An encoder and a decoder, with a cache of two parts."""
    layers = {"num_layers": 2, "num_decoder_layers": 3, "decoder_start_token_id": 0}
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 100}
    return of_transformers("T5", "ForConditionalGeneration", **sizes, **layers)


def bloom():
    """Blocks that return the cache."""
    return of_transformers("Bloom", "ForCausalLM", n_layer=2, hidden_size=32, n_head=4, vocab_size=100)


def kept_bytes(training):
    meter = LiveBytes(tensors_of(training.model, (), training.batch))
    with meter:
        result = training.model(**training.batch)  # with its cache
        kept = meter.now - meter.base
    result.loss.backward()
    training.model.zero_grad()
    return kept


@pytest.mark.parametrize(
    ("make_model", "blocks"),
    [
        (lambda: make("llama").model, {"model.layers.*": 2}),
        (t5, {"encoder.block.*": 2, "decoder.block.*": 3}),
        (bloom, {"transformer.h.*": 2}),
    ],
    ids=["llama", "t5", "bloom"],
)
def test_blocks_that_run_again_fill_caches_of_their_own(make_model, blocks):
    torch.manual_seed(0)
    training = Training(make_model(), {**tokens(100, 4, 12), "use_cache": True}, own_loss)
    expected, plain = training.gradients(), kept_bytes(training)
    found = detect_in(training)
    board = found.switchboard(training.model)
    assert {site.name: len(site.occurrences) for site in found.sites}.items() >= blocks.items()
    for site in found.sites:
        for option in site.options:
            board.set([Choice(site.name, option)])
            assert differences(training.gradients(), expected) == [], (site.name, option)
    board.set([Choice(group, "checkpoint") for group in blocks])
    with_cache = kept_bytes(training)
    assert with_cache < plain / 2
    training.batch["use_cache"] = False
    if make_model is not bloom:  # whose last block returns what it has filled
        assert with_cache == kept_bytes(training)


def test_a_module_that_knows_no_place_in_a_cache_is_not_one_that_fills_it():
    """Nothing tells whether its place is empty."""
    assert not can_have_its_own(torch.nn.Linear(2, 2), [DynamicCache()])
    assert can_have_its_own(make("llama").model.model.layers[1], [DynamicCache()])


@pytest.mark.parametrize(
    ("layers", "why"),
    [
        ([nn.LayerNorm(2), nn.GroupNorm(1, 2)], ""),
        ([nn.BatchNorm1d(2)], "BatchNorm (0) takes its statistics over one pass"),
        ([nn.BatchNorm1d(2), nn.SyncBatchNorm(2)], "BatchNorm (0, and 1 more) takes its statistics over one pass"),
        ([nn.BatchNorm1d(2).eval()], ""),
    ],
    ids=["none", "one", "several", "frozen"],
)
def test_a_model_with_batch_norm_cannot_be_split(layers, why):
    assert why_unsplittable(nn.Sequential(*layers)) == why
