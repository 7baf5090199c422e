"""Compares the gradients of everyday models with PyTorch's, and those with all plans with those without."""

import copy
import functools
import json
import tempfile
from pathlib import Path

import onnxruntime
import torch
from autorecompute.backends.ortmodule.detection import detect
from autorecompute.backends.ortmodule.worker import check_gradients, rebuild
from autorecompute.plans import Config
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attend
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

BATCH, LENGTH, WIDTH, HEADS, VOCABULARY = 3, 5, 16, 4, 32
BLIND = torch.rand(BATCH, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)) > 0.4
BLIND[..., 0] = True
MASK = BLIND.clone()
BLIND[0, 0, 1] = False


class Attention(nn.Module):
    """Attention as nanoGPT has it."""

    def __init__(self, key_heads=HEADS, **options):
        super().__init__()
        self.queries, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.keys, self.values = (nn.Linear(WIDTH, key_heads * WIDTH // HEADS) for _ in range(2))
        self.options = options

    def forward(self, x, mask=None):
        batch, length, _ = x.shape
        parts = (layer(x).view(batch, length, -1, WIDTH // HEADS) for layer in (self.queries, self.keys, self.values))
        q, k, v = (part.transpose(1, 2) for part in parts)
        return self.out(attend(q, k, v, attn_mask=mask, **self.options).transpose(1, 2).reshape(x.shape))


class Weights(nn.Module):
    """Gives the weights of attention as they are multiplied with values, dropped ones among them."""

    def __init__(self, **options):
        super().__init__()
        self.queries, self.keys, self.options = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), options

    def forward(self, x, values, mask=None):
        return attend(self.queries(x), self.keys(x), values, attn_mask=mask, **self.options)


class Biased(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.randn(LENGTH, LENGTH))

    def forward(self, x):
        x = self.linear(x)
        return attend(x, x, x, attn_mask=self.bias)


class Calling(nn.Module):
    """A layer, and what is done with its output."""

    def __init__(self, call):
        super().__init__()
        self.linear, self.call = nn.Linear(WIDTH, WIDTH), call

    def forward(self, x, *rest):
        return self.call(self.linear(x), *rest)


class SelfAttention(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.attention, self.options = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), options

    def forward(self, x):
        outputs, weights = self.attention(x, x, x, **self.options)
        return outputs if weights is None else (outputs, weights)


class Noise(nn.Module):
    """Draws by an operator that takes its seed when ORT makes a session."""

    def forward(self, x):
        return x + x * torch.randn_like(x)


class Padded(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.encoder = nn.TransformerEncoder(encoder_layer(**options), 2)

    def forward(self, x, padding):
        return self.encoder(x, src_key_padding_mask=padding)


class Language(nn.Module):
    """A language model of transformers with its loss."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens, mask=None):
        return self.model(input_ids=tokens, attention_mask=mask, labels=tokens).loss


def encoder_layer(dropout=0.0, **options):
    return nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, dropout=dropout, batch_first=True, **options)


class NanoNorm(nn.Module):
    """LayerNorm with an optional bias, as nanoGPT has it."""

    def __init__(self, width, *, bias):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width)) if bias else None

    def forward(self, x):
        return nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, 1e-5)


def norms(kind=nn.LayerNorm, width=WIDTH, **options):
    first, last = nn.Linear(WIDTH, width), nn.Linear(width, WIDTH)
    return nn.Sequential(first, kind(width, **options), nn.GELU(), kind(width, **options), last)


def gpt(dropout):
    names = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    sizes = {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_positions": 16}
    return Language(GPT2LMHeadModel(GPT2Config(**sizes, **names, use_cache=False)))


def bert(dropout):
    names = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
    sizes = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Language(BertForMaskedLM(BertConfig(**sizes, **names, intermediate_size=32, max_position_embeddings=16)))


def added(mask):
    return torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)


torch.manual_seed(0)
X, IMAGES = torch.randn(BATCH, LENGTH, WIDTH), torch.randn(BATCH, 2, 8, 8)
TOKENS, PADDING = torch.randint(VOCABULARY, (BATCH, LENGTH)), torch.zeros(BATCH, LENGTH, dtype=torch.bool)
PADDING[0, 3:] = True
AGAIN = torch.tensor([0, 2, 0])
# Torch 2.6 is left its own export of attention without dropout; enable_gqa takes ours, with as many heads, too.
OURS = {"enable_gqa": True}

WITH_AN_INDEX = {
    "index_add": lambda x, index: torch.zeros_like(x).index_add(1, index, x[:, :3]),
    "index_add to what is there": lambda x, index: x.index_add(-2, index, x[:, :3], alpha=2),
    "scatter_add": lambda x, index: x.scatter_add(1, index[:, None].expand(BATCH, 3, WIDTH), x[:, :3]),
    "scatter_reduce": lambda x, index: x.scatter_reduce(1, index[:, None].expand(BATCH, 3, WIDTH), x[:, :3], "sum"),
    "index_put that accumulates": lambda x, index: x.index_put((index,), 2 * x[:3], accumulate=True),
    "index_put that spreads": lambda x, index: x.index_put((index[None].expand(2, 3),), x[:2, None], accumulate=True),
    "index_put": lambda x, index: x.index_put((index[:2],), 2 * x[:2]),
}
MODELS = {
    "attention": (Attention(), X),
    "causal attention": (Attention(is_causal=True), X),
    "attention with a boolean mask": (Attention(), X, MASK),
    "attention with an added mask": (Attention(), X, torch.randn(BATCH, 1, LENGTH, LENGTH)),
    "attention with a scale": (Attention(scale=0.3), X),
    "attention with shared keys": (Attention(key_heads=2, is_causal=True, scale=0.3, **OURS), X),
    "attention that may see nothing": (Attention(**OURS), X, BLIND),
    "attention with an added mask that may see nothing": (Attention(**OURS), X, added(BLIND)),
    "attention with a learned bias": (Biased(), X),
    "unflatten the last dimension": (Calling(lambda x: x.unflatten(-1, (2, 8))), X),
    "unflatten with an open size": (Calling(lambda x: x.unflatten(2, (4, -1))), X),
    "unflatten another dimension": (Calling(lambda x: x.flatten(0, 1).unflatten(0, (-1, LENGTH))), X),
    "multi-head attention": (SelfAttention(), X),
    "multi-head attention without weights": (SelfAttention(need_weights=False), X),
    "encoder layer": (encoder_layer(), X),
    "encoder layer without bias": (encoder_layer(bias=False, norm_first=True), X),
    "padded encoder": (Padded(), X, PADDING),
    "norms without bias": (norms(bias=False), X),
    "norms without weight and bias": (norms(elementwise_affine=False), X),
    "norms of few features": (norms(width=8, bias=False), X),
    "norms of nanoGPT": (norms(NanoNorm, bias=False), X),
    "norms whose shape is traced": (Calling(lambda x: nn.functional.layer_norm(x, x.shape[-1:])), X),
    "RMS norms": (norms(nn.RMSNorm), X),
    "RMS norms without weight": (norms(nn.RMSNorm, elementwise_affine=False), X),
    "GPT-2": (gpt(0.0), TOKENS, (~PADDING).long()),
    "GPT-2 without a mask": (gpt(0.0), TOKENS),
    "BERT": (bert(0.0), TOKENS, (~PADDING).long()),
    "diff": (Calling(lambda x: x.diff(n=2, dim=1, prepend=x[:, :1], append=x[:, :2])), X),
    "bernoulli": (Calling(lambda x, shares: x * torch.bernoulli(shares)), X, (X > 0).float()),
    "softplus": (Calling(lambda x: nn.functional.softplus(x, beta=2.0, threshold=1.0)), X),
    "softplus of large numbers": (Calling(lambda x: nn.functional.softplus(1000 * x) / 1000), X),
    "max_pool1d": (Calling(lambda x: nn.functional.max_pool1d(x, 2)), X),
    "max_pool1d that overlaps": (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.MaxPool1d(3, 2, 1, ceil_mode=True)), X),
    **{name: (Calling(call), X, AGAIN) for name, call in WITH_AN_INDEX.items()},
    "logsumexp": (Calling(lambda x: x.logsumexp(-1)), X),
    "logsumexp of large numbers": (Calling(lambda x: torch.logsumexp(100 * x, (0, 2), keepdim=True) / 100), X),
    "convolution without padding": (nn.Conv2d(2, 3, 3, padding="valid"), IMAGES),
}
IN_FLOAT16 = {name: MODELS[name] for name in ("attention with a boolean mask", "norms without bias", "RMS norms")}
DROPPING = {
    "causal": (Weights(is_causal=True, dropout_p=0.3), None),
    "with a boolean mask": (Weights(dropout_p=0.3), MASK[:1, 0]),
    "with an added mask": (Weights(dropout_p=0.3, scale=0.2), added(MASK[:1, 0])),
}
RECOMPUTED = {
    "GPT-2": (gpt(0.1), TOKENS, (~PADDING).long()),
    "BERT": (bert(0.1), TOKENS, (~PADDING).long()),
    "nanoGPT": (Attention(is_causal=True, dropout_p=0.1), X),
    "encoder": (Padded(dropout=0.1), X, PADDING),
    "noise": (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), Noise(), nn.Linear(WIDTH, WIDTH)), X),
}


def wrap(model):
    return ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))


def weigh(outputs):
    """One number that each entry of the outputs has a weight of its own in."""
    tensors = outputs if isinstance(outputs, tuple) else (outputs,)
    return sum((tensor.float() * torch.arange(tensor.numel()).cos().view_as(tensor)).sum() for tensor in tensors)


def worst_of(wanted, found):
    """The largest difference between two gradients, relative to the largest entry of any."""
    scale = max(gradient.abs().max().item() for gradient in wanted)
    differences = (theirs - ours for theirs, ours in zip(wanted, found, strict=True))
    return max(difference.abs().max().item() / scale for difference in differences)


def gradients_of(loss, model):
    return torch.autograd.grad(loss, list(model.parameters()))


def compare(model, *inputs, dtype=None):
    model = copy.deepcopy(model)
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        wanted = gradients_of(weigh(model(*inputs)), model)
        return worst_of(wanted, gradients_of(weigh(wrap(model)(*inputs)), model))


def compare_dropped(model, mask):
    """The same where some weights are dropped: PyTorch is told which ones, and what becomes of the others."""
    x, values = torch.randn(64, LENGTH, WIDTH), torch.eye(LENGTH).repeat(64, 1, 1)
    options = {**model.options, "dropout_p": 0.0}
    dropped = wrap(copy.deepcopy(model))
    ours = dropped(x, values, mask)
    whole = attend(model.queries(x), model.keys(x), values, attn_mask=mask, **options)
    share = 1 - ((ours != 0).sum() / (whole != 0).sum()).item()
    theirs = whole * (ours != 0) / (1 - model.options["dropout_p"])
    wanted, found = gradients_of(weigh(theirs), model), gradients_of(weigh(ours), dropped)
    return {"worst": worst_of(wanted, found), "outputs": (theirs - ours).abs().max().item(), "share": share}


def compare_recomputed(model, *inputs):
    """The largest difference that all plans together make, and which operators they recompute."""
    onnxruntime.set_seed(7)
    wrapped = wrap(model)
    weigh(wrapped(*inputs)).backward()
    manager = wrapped._torch_module._execution_manager._training_manager
    space = detect(manager).space
    with tempfile.TemporaryDirectory() as folder:
        rebuild_with = functools.partial(rebuild, manager, folder=Path(folder))
        check = check_gradients(manager, Config.of(space.plans), forward=lambda: wrapped(*inputs), rebuild=rebuild_with)
    sites = {choice.site for plan in space.plans for choice in plan.choices}
    return {"worst": check.worst, "operators": sorted({part for site in sites for part in site.split("+")})}


def tell(kind, name, **found):
    print(json.dumps({"kind": kind, "name": name, **found}), flush=True)


for name, (model, *inputs) in MODELS.items():
    tell("float32", name, worst=compare(model, *inputs))
for name, (model, *inputs) in IN_FLOAT16.items():
    tell("float16", name, worst=compare(model, *inputs, dtype=torch.float16))
for name, (model, mask) in DROPPING.items():
    tell("dropped", name, **compare_dropped(model, mask))
for name, (model, *inputs) in RECOMPUTED.items():
    tell("recomputed", name, **compare_recomputed(model, *inputs))
