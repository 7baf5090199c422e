"""Takes a training step with a model, changes something, and takes another; one model after the other."""

import torch
from torch import nn
from torch.nn.functional import dropout

FEATURES = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.calls = nn.Linear(FEATURES, FEATURES), 0

    def forward(self, inputs):
        self.calls += 1
        return inputs + self.linear(inputs).relu()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(FEATURES, FEATURES)
        self.norm, self.average = nn.BatchNorm1d(FEATURES), Block()
        self.scale, self.adapter, self.table, self.epoch, self.share = 1.0, None, torch.ones(3, 1), 0, 0.0
        self.register_buffer("bias", torch.zeros(FEATURES))

    def forward(self, inputs, mask=None, *, double=False, weight=1.0, names=(), **parts):
        del names
        if len(inputs) > len(self.table):  # kept for the longest inputs so far, as tables of positions often are
            self.table = torch.ones(len(inputs), 1)
        for block in self.blocks:
            inputs = block(inputs)
        outputs = self.norm(self.head(inputs) * self.scale + self.bias) + self.table[: inputs.shape[0]]
        outputs = outputs if self.adapter is None else self.adapter(outputs)
        outputs = outputs if mask is None else outputs * mask
        outputs = 2 * outputs if double else outputs
        outputs = dropout(outputs + parts.get("extra", 0), self.share, self.training)
        return (weight * outputs).square().mean()


def evaluate(model):
    model.eval()
    with torch.no_grad():
        model(torch.ones(9, FEATURES))
    model.train()


INPUTS = torch.arange(12.0).reshape(3, FEATURES)
REFUSED = {
    "mask": lambda _: {"mask": torch.zeros(FEATURES)},
    "flag": lambda _: {"double": True},
    "keyword": lambda _: {"extra": INPUTS},
    "attribute": lambda model: setattr(model, "scale", 3.0),
    "part": lambda model: setattr(model, "head", nn.Linear(FEATURES, FEATURES)),
    "new part": lambda model: setattr(model, "adapter", nn.Linear(FEATURES, FEATURES)),
    "more blocks": lambda model: model.blocks.append(Block()) and None,
    "inner part": lambda model: setattr(model.blocks[1], "linear", nn.Linear(FEATURES, FEATURES)),
    "weight": lambda model: setattr(model.head, "weight", nn.Parameter(torch.ones(FEATURES, FEATURES))),
    "buffer": lambda model: setattr(model, "bias", torch.ones(FEATURES)),
    "mode": lambda model: model.norm.eval() and None,
}
ALLOWED = {
    "nothing": lambda _: None,
    "batch": lambda _: {"inputs": INPUTS[:2]},
    "number": lambda _: {"weight": 3.0},
    "default": lambda _: {"mask": None},
    "names": lambda _: {"names": ["b", "c"]},
    "unread attribute": lambda model: setattr(model, "epoch", 1),
    "same attribute": lambda model: setattr(model, "scale", float("1")),
    "uncalled part": lambda model: setattr(model, "average", Block()),
    "mode of an uncalled part": lambda model: model.average.eval() and None,
    "evaluation": evaluate,
    "weights in place": lambda model: model.load_state_dict({k: v + 1 for k, v in model.state_dict().items()}) and None,
    "frozen": lambda model: model.head.requires_grad_(False) and None,
}


def train(model, optimizer, **inputs):
    optimizer.zero_grad()
    loss = model(**{"inputs": INPUTS, "weight": 2.0, "names": ["a"], **inputs})
    loss.backward()
    optimizer.step()
    return loss.item()


for name, change in {**REFUSED, **ALLOWED}.items():
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    train(model, optimizer)
    inputs = change(model) or {}
    try:
        print(f"change {name}: loss {train(model, optimizer, **inputs):.4f}")
    except Exception as error:  # noqa: BLE001  (whatever it is, it is printed)
        print(f"change {name}: {error}")
