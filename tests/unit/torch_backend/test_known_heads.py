"""Plans of a vocabulary head that are known: what applies them looks at no whole logits."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from autorecompute.backends.torch.check.gradients import check_gradients, scored
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.heads import heads_in
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.forecast.plans_file import PlansFile
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.applying import apply_in_first_step, apply_now
from autorecompute.backends.torch.switch.intercepting import release
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.errors import UsageError
from autorecompute.plans import Choice, Config, Lengths
from stand_ins.vocabulary import WORDS, Model, WithLoss, X, Y

CHUNKS = Config(frozenset([Choice("head/cross_entropy", "chunk")]))


@pytest.fixture
def make():
    """Makes models, which are as torch runs them again in the end."""
    made = []

    def make(kind, **options):
        torch.manual_seed(0)
        made.append(kind(**options))
        return made[-1]

    yield make
    for one in (module for model in made for module in model.modules()):
        release(one)


def file_for(model, config=CHUNKS, **more):
    return PlansFile(config=config, model=name_of(model), **more)


class Lora(nn.Module):
    """A head with a product beside it, as peft makes one."""

    def __init__(self, base):
        super().__init__()
        self.base_layer, self.lora_A = base, nn.Linear(base.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, base.out_features, bias=False)

    def forward(self, hidden):
        return self.base_layer(hidden) + self.lora_B(self.lora_A(hidden)) * 0.5


@pytest.mark.parametrize("adapts", [False, True], ids=["a head", "a head with LoRA"])
def test_the_look_at_the_first_call_takes_no_more_than_a_step(make, adapts):
    words = 1000
    model, x, y = make(WithLoss, words=words), X.repeat(8, 1), Y.repeat(8, 1)
    model.head = Lora(model.head) if adapts else model.head
    (site,) = (site.name for site in detect(model, (x, y), {}).sites if "chunk" in site.options)

    def train():
        model(x, y)[0].backward()

    peaks = []
    for run in (lambda: apply_now(file_for(model, Config.parse([f"{site}:chunk"])), model, (x, y), {}), train):
        with LiveBytes(tensors_of(model, (), (x, y))) as live:
            run()
        peaks.append(live.peak - live.base)
    assert max(peaks) < x.numel() * words * 4
    assert peaks[0] < 1.1 * peaks[1]


@pytest.mark.parametrize("kind", [Model, WithLoss])
def test_a_first_batch_of_one_chunk_trains_as_the_others(make, kind):
    model = make(kind)
    tuned = apply_now(file_for(model), model, (X[:1],), {} if kind is Model else {"labels": Y[:1]})
    result = model(X)
    assert isinstance(result if kind is Model else result[1], Logits)
    assert set(tuned.board.choices) == CHUNKS.choices


class Wide(WithLoss):
    """Two products make its logits, which no module holds alone, beside a layer that is wider."""

    def __init__(self):
        super().__init__(adapts=True)
        self.inner = nn.Sequential(nn.Linear(8, 2 * WORDS), nn.GELU(), nn.Linear(2 * WORDS, 8))


def test_a_head_that_its_name_does_not_tell_is_looked_for(make):
    model = make(Wide)
    (site,) = (site for site in detect(model, (X, Y), {}).sites if "chunk" in site.options)
    assert heads_in([Choice(site.name, "chunk")], model) == {}
    tuned = apply_now(file_for(model, Config.parse([f"{site.name}:chunk"])), model, (X, Y), {})
    assert tuned.board.sites[site.name].occurrences == ("head", "adapted.1")


def test_a_head_that_the_script_checkpoints_since_is_refused(make):
    model = make(WithLoss)
    head = model.head
    model.head = Checkpointed(head)
    file = file_for(model, Config.parse(["head.layer/cross_entropy:chunk"]))
    with pytest.raises(UsageError, match="does not offer"):
        apply_now(file, model, (X, Y), {})


class Checkpointed(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, hidden):
        return checkpoint(self.layer, hidden, use_reentrant=False)


class Capped(Model):
    def forward(self, x, labels=Y):
        logits = torch.tanh(super().forward(x) / 30) * 30
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_what_another_length_drops_is_found_where_its_logits_are_whole(make):
    """A softmax of whole logits may be dropped, and is not there beside chunks."""
    model = make(Capped)
    short = Config(frozenset([Choice("log_softmax", "drop")]))
    lengths = Lengths(batch=4, ends=(10, 100), configs=(short, CHUNKS))
    tuned = apply_now(file_for(model, lengths=lengths), model, (X, Y), {})
    assert {"log_softmax", "head/cross_entropy"} <= tuned.board.sites.keys()


@pytest.mark.parametrize("way", ["run", "apply"])
def test_threads_that_call_the_model_at_once_train_as_without(make, monkeypatch, tmp_path, way):
    monkeypatch.setattr(applying, "ELSEWHERE", threading.Event())
    model, gradients = make(Model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    (tmp_path / "plans.json").write_text(file_for(model).text)

    def train(part):
        functional.cross_entropy(model(X[part]).flatten(0, 1), Y[part].flatten(), reduction="sum").backward()

    for applies in (False, True):
        if applies and way == "run":
            apply_in_first_step(file_for(model)).note(optimizer)
        elif applies:
            applying.apply(model, tmp_path / "plans.json")
        threads = [threading.Thread(target=train, args=(slice(at, at + 1),)) for at in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gradients.append(model.head.weight.grad.clone())
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)


class WithKeys(WithLoss):
    """Attention whose keys have a bias, of which no gradient is left but rounding."""

    def __init__(self, *, clips=False):
        super().__init__()
        self.queries, self.keys, self.clips = nn.Linear(8, 8), nn.Linear(8, 8), clips

    def forward(self, x, labels=Y):
        words = self.words(x)
        attended = functional.scaled_dot_product_attention(self.queries(words), self.keys(words), self.inner(words))
        attended = Clipped.apply(attended) if self.clips else attended
        logits = self.head(attended)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


class Clipped(torch.autograd.Function):
    """Gradients of one length, whatever the loss is multiplied by."""

    @staticmethod
    def forward(_ctx, x):
        return x.clone()

    @staticmethod
    def backward(_ctx, gradient):
        return gradient / gradient.norm()


@pytest.mark.parametrize("clips", [False, True])
def test_gradients_that_are_rounding_alone_keep_no_head_from_chunks(make, clips):
    model = make(WithKeys, clips=clips)
    board = detect(model, (X, Y), {}).switchboard(model)
    check = check_gradients(model, board, CHUNKS.choices, (X, Y), {})
    assert check.agrees, check
    assert 0 < check.worst < 1e-4
    head = board.heads["head"]
    head.__class__ = type("Wrong", (type(head),), {"__call__": wrong})
    assert not check_gradients(model, board, CHUNKS.choices, (X, Y), {}).agrees


def wrong(_head, forward, _module, hidden):
    return forward(2 * hidden.detach() - hidden)


class Losses(Model):
    """A model that returns a loss for each word."""

    def forward(self, x, labels=Y):
        return functional.cross_entropy(super().forward(x).flatten(0, 1), labels.flatten(), reduction="none")


class Scored(Model):
    """A model that returns a score for each text beside its logits."""

    def __init__(self):
        super().__init__()
        self.score = nn.Linear(8, 1)

    def forward(self, x):
        hidden = self.words(x)
        return self.head(torch.tanh(self.inner(hidden))), self.score(hidden)


@pytest.mark.parametrize("kind", [Model, Losses, Scored])
def test_chunks_are_compared_as_a_script_uses_them(make, kind):
    model = make(kind)
    board = detect(model, (X,), {}).switchboard(model)
    check = check_gradients(model, board, CHUNKS.choices, (X,), {})
    assert check.agrees
    assert 0 < check.worst < 1e-5
    assert not board.heads["head"].made
    if kind is Scored:
        scored(model(X), {WORDS}).backward()
        assert model.score.weight.grad.abs().max() > 0
