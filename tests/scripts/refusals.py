"""Gives ORTModule models that it cannot take, and prints what each of them is said to fail for."""

import json
from contextlib import nullcontext

import torch
from autorecompute.backends.ortmodule.exceptions import classify
from onnxruntime.training.ortmodule import DebugOptions, LogLevel, ORTModule
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 16
BFLOAT16 = {"device_type": "cpu", "dtype": torch.bfloat16}


class Part(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


class Model(nn.Module):
    """Two layers, and between them a part that may be too much for ORTModule."""

    def __init__(self, call):
        super().__init__()
        first = nn.Sequential(nn.Linear(WIDTH, WIDTH), Part(call))
        self.body = nn.ModuleDict({"layers": nn.ModuleList([first, nn.Linear(WIDTH, WIDTH)])})

    def forward(self, x):
        for layer in self.body.layers:
            x = layer(x)
        return x


class Within(nn.Module):
    """Enters a context in its forward."""

    def __init__(self, model, context):
        super().__init__()
        self.model, self.context = model, context

    def forward(self, x):
        with self.context():
            return self.model(x)


def misspell(x):
    return x.unsqeeze(0)


def mlp():
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def compile_in_place():
    model = mlp()
    model.compile(backend="eager")
    return model


def compiled(model):
    return torch.compile(model, backend="eager")


X, IMAGES = torch.randn(4, 5, WIDTH), torch.randn(2, 3, 8, 8)
LABELS = torch.zeros(20, dtype=torch.int64)
OPERATORS = {
    "lgamma": torch.lgamma,
    "cumprod": lambda x: x.cumprod(-1),
    "smoothing": lambda x: x * nn.functional.cross_entropy(x.flatten(0, 1), LABELS, label_smoothing=0.1),
    "norm": lambda x: x / x.norm(dim=-1)[..., None],
    "reflection": lambda x: nn.functional.pad(x, (1, 1), mode="reflect")[..., 1:-1],
    "flip": lambda x: x.flip(-1),
    "scatter_reduce": lambda x: x.scatter_reduce(1, torch.zeros_like(x, dtype=torch.int64), x, "amax"),
    "index_put": lambda x: x.index_put((LABELS[:4], LABELS[:4]), x[:, 0], accumulate=True),
    "first of two": lambda x: x.repeat(1, 1, 2).chunk(2, -1)[0],
}
MODELS = {
    **{f"operator {name}": (Model(call), X) for name, call in OPERATORS.items()},
    "operator transposed": (nn.Sequential(nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 4, 2)), IMAGES),
    "operator same": (nn.Sequential(nn.Conv2d(3, 3, 3, padding="same")), IMAGES),
    "bfloat16 around": (mlp(), X, lambda: torch.autocast(**BFLOAT16)),
    "bfloat16 within": (Within(mlp(), lambda: torch.autocast(**BFLOAT16)), X),
    "bfloat16 weights": (mlp().bfloat16(), X.bfloat16()),
    "checkpoint": (Model(lambda x: checkpoint(torch.sigmoid, x, use_reentrant=True)), X),
    "compile": (compiled(mlp()), X),
    "compile in place": (compile_in_place(), X),
    "compile a part": (nn.Sequential(nn.Linear(WIDTH, WIDTH), compiled(mlp())), X),
    "compile a function": (Model(compiled(torch.sigmoid)), X),
    "mistake": (Model(misspell), X),
}


def train(model, inputs, context=nullcontext):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with context():
        loss = ORTModule(model, DebugOptions(log_level=LogLevel.ERROR))(inputs).float().square().mean()
    loss.backward()
    optimizer.step()


def tell(name, *arguments):
    try:
        train(*arguments)
    except Exception as error:  # noqa: BLE001  (whatever a model fails with is what is asked for)
        outcome, sentence = classify(error)
        print(json.dumps({"name": name, "outcome": outcome.value, "sentence": sentence}), flush=True)


for name, (model, inputs, *context) in MODELS.items():
    tell(name, model, inputs, *context)
