"""What is found in a model before its first step, and that nothing is left of looking."""

import contextlib
import copy
import functools

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.fake.live import StepLive, tensors_of
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.forecast.records import DROP
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.backends.torch.switch.rewriting import Rewrite
from autorecompute.plans import Choice
from stand_ins.surveyed import detect_in
from tiny_models import MODELS, Training, differences, make


def test_a_forward_on_the_instance_hides_nothing():
    """Accelerate puts one there for mixed precision: what the model itself saves, for its loss, is told as before."""
    training = make("llama")
    plain = detect_in(training)
    training.model.forward = functools.partial(type(training.model).forward, training.model)
    found = detect_in(training)
    assert [site.name for site in found.sites] == [site.name for site in plain.sites]
    found.switchboard(training.model).set([])


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(16, 8), nn.Embedding(16, 8)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(3))

    def forward(self, places, tokens, labels):
        x = self.tokens(tokens) + self.places(places)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.cross_entropy(x.flatten(0, 1), labels.flatten())


def test_the_batch_is_that_of_most_tensors():
    """The first may be there once for all samples: what a batch saves would be scaled by its samples again."""

    def found(batch):
        indices = torch.zeros(batch, 8, dtype=torch.long)
        return detect(Placed(), (torch.arange(8).unsqueeze(0), indices, indices), {})

    small, large = found(4), found(8)
    assert (small.batch, large.batch) == (4, 8)
    assert small.savings.keys() == large.savings.keys()
    assert all(saving.at(8) == pytest.approx(large.savings[site].at(8)) for site, saving in small.savings.items())


@pytest.mark.parametrize(
    ("training", "bfloat16"),
    [*((name, False) for name in MODELS), ("llama", True), ("resnet", True)],
    indirect=["training"],
)
def test_every_site_gives_the_bits_of_the_plain_step(training, bfloat16):
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
    wholes = [[choice] for (choice,) in alone if choice.site in found.blocks]
    kept_graphs = []
    for choices in ([], operators, *wholes):  # which is gone through twice
        training.model.load_state_dict(before)
        board.set(choices)
        kept_graphs.append(training.gradients(around=around(), backwards=2))
    assert [differences(one, kept_graphs[0]) for one in kept_graphs] == [[]] * len(kept_graphs)
    board.set(operators)
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
        ("vit", ["layernorm_before/layer_norm", "attention/dropout_mask"]),
        ("encoder", ["norm2/layer_norm", "dropout/mul", "self_attn/scaled_dot_product_attention"]),
        ("resnet", ["relu/relu"]),
    ],
)
def test_the_operators_of_a_model_are_found(name, sites):
    training = make(name)
    found = detect_in(training)
    block = found.structure.group_of(found.structure.units[0])
    units = len(found.structure.units)
    occurrences = {site.name: len(site.occurrences) for site in found.sites}
    assert {site: occurrences.get(f"{block}.{site}") for site in sites} == dict.fromkeys(sites, units)
    assert found.blocks == (block,)


def differences_when_all_is_dropped(training, found, meanwhile=lambda _: None):
    """Those of a step from a plain one, where the model changes after it was looked at."""
    meanwhile(training.model)
    expected = training.gradients()
    board = found.switchboard(training.model)
    board.set([Choice(site.name, DROP) for site in found.sites if DROP in site.options])
    dropped = training.gradients()
    board.set([])
    return differences(dropped, expected)


def four_blocks(kind):
    data = {"x": torch.randn(4, 16, 8)}
    model = nn.Sequential(*(kind() for _ in range(4)))
    return Training(model, data, lambda model, batch: model(batch["x"]).square().mean())


def test_the_epsilon_of_a_norm_is_found_where_its_input_is_still_constant():
    """Behind a weight that begins at zero the result is the same with every epsilon, and later it is not."""

    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 8)
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)
            self.up, self.side, self.down = nn.Linear(8, 32), nn.Linear(8, 32), nn.Linear(32, 8)

        def forward(self, x):
            gated = self.up(functional.layer_norm(self.gate(x), (8,), eps=1e-12))
            return x + self.down(functional.gelu(gated + self.side(functional.layer_norm(x, (8,), eps=1e-6))))

    def learn(model):
        for block in model:
            nn.init.normal_(block.gate.weight, std=0.01)

    training = four_blocks(Gated)
    found = detect_in(training)
    assert any("norm" in site.name for site in found.sites), [site.name for site in found.sites]
    assert differences_when_all_is_dropped(training, found, learn) == []


def test_a_mask_that_is_divided_by_a_tensor_is_no_mask_of_one_number():
    """The chance to be kept may be the same everywhere in the first step, and differ later."""

    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
            self.register_buffer("keep", torch.full((32,), 0.9))

        def forward(self, x):
            inner = functional.gelu(self.up(x))
            return x + self.down(inner * torch.empty_like(inner).bernoulli_(0.7).div_(self.keep))

    def learn(model):
        for block in model:
            block.keep.uniform_(0.5, 1.0)

    training = four_blocks(Masked)
    assert differences_when_all_is_dropped(training, detect_in(training), learn) == []


class Equilibrium(nn.Module):
    """Calls its blocks without gradients until little changes, and once more with them."""

    def __init__(self, warm_up):
        super().__init__()
        self.warm_up = warm_up
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 8)) for _ in range(3))

    def forward(self, x):
        z = torch.zeros_like(x)
        with torch.no_grad():
            for _ in range(self.warm_up):
                z = self.step(z, x)
        return self.step(z, x)

    def step(self, z, x):
        for block in self.blocks:
            z = block(z + x)
        return z


def test_calls_without_gradients_hold_nothing():
    def found(warm_up):
        return detect(Equilibrium(warm_up), (torch.randn(16, 8),), {})

    plain, warmed_up = found(0), found(9)
    assert plain.savings["blocks.*"].at(16) > 0
    assert warmed_up.savings == plain.savings
    assert warmed_up.sites == plain.sites
    assert warmed_up.checkpointed == (), "its blocks run twice, and no script's checkpoint does that"
    assert (warmed_up.calls, warmed_up.repeated) == (plain.calls, plain.repeated)


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.variable = "a name that AccumulateGrad has, too"
        return 2 * x

    @staticmethod
    def backward(_ctx, gradient):
        return 2 * gradient


class ScaledBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x):
        return functional.gelu(self.norm(Scaled.apply(self.linear(x))))


def test_attributes_of_a_function_of_the_scripts_are_the_scripts():
    model = nn.Sequential(*(ScaledBlock() for _ in range(3)))
    names = {site.name for site in detect(model, (torch.randn(2, 8),), {}).sites}
    assert names >= {"*", "*.norm/layer_norm"}


def test_what_is_held_at_rest_is_counted_where_a_tensor_is_sparse():
    model = nn.Linear(3, 3)
    model.register_buffer("edges", torch.eye(3).to_sparse())
    held = [
        StepLive(lambda: tensors_of(model, ()), later).held_bytes(500) for later in (lambda: (0, 0), lambda: (0, 20))
    ]
    assert held == [500, 500 + 20 - 12]


class States(nn.Module):
    """Returns hidden states, which one linear layer makes and another adds to, with a loss if asked."""

    def __init__(self, hidden, *, has_loss):
        super().__init__()
        self.inner, self.outer, self.has_loss = nn.Linear(16, 256), nn.Linear(256, hidden), has_loss

    def forward(self, x):
        states = self.outer(self.inner(x).relu())
        return {"loss": states.mean(), "states": states} if self.has_loss else {"states": states}


@pytest.mark.parametrize(
    ("hidden", "has_loss", "heads"), [(16, False, []), (512, True, ["outer"]), (512, False, ["outer"])]
)
def test_what_a_model_returns_is_taken_for_logits_where_it_is_wide(hidden, has_loss, heads):
    torch.manual_seed(0)
    found = detect(States(hidden, has_loss=has_loss), (torch.rand(4, 512, 16),), {})
    assert [path for site in found.sites if "chunk" in site.options for path in site.occurrences] == heads
