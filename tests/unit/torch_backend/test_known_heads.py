"""Plans of a vocabulary head that are known: what applies them looks at no whole logits."""

import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from autorecompute.backends.torch.check.gradients import check_gradients
from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.find.detection import detect
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.forecast.plans_file import PlansFile
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.applying import apply_in_first_step, apply_now
from autorecompute.backends.torch.switch.logits import Logits
from autorecompute.plans import Choice, Config, Lengths
from stand_ins.vocabulary import Model, WithLoss, X, Y

CHUNKS = Config(frozenset([Choice("head/cross_entropy", "chunk")]))


def file_for(model, config=CHUNKS, **more):
    return PlansFile(config=config, model=name_of(model), **more)


@pytest.mark.parametrize("adapts", [False, True], ids=["a head", "a head with LoRA"])
def test_the_look_at_the_first_call_takes_no_more_than_a_step(adapts):
    torch.manual_seed(0)
    model, (x, y), words = WithLoss(words=1000, adapts=adapts), (X.repeat(8, 1), Y.repeat(8, 1)), 1000
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


@pytest.mark.parametrize("model", [Model(), WithLoss()], ids=["logits", "a loss"])
def test_a_first_batch_of_one_chunk_trains_as_the_others(model):
    tuned = apply_now(file_for(model), model, (X[:1],), {} if type(model) is Model else {"labels": Y[:1]})
    result = model(X)
    assert isinstance(result if type(model) is Model else result[1], Logits)
    assert set(tuned.board.choices) == CHUNKS.choices


class Capped(Model):
    def forward(self, x, labels=Y):
        logits = torch.tanh(super().forward(x) / 30) * 30
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_what_another_length_drops_is_found_where_its_logits_are_whole():
    """A softmax of whole logits may be dropped, and is not there beside chunks."""
    model = Capped()
    short = Config(frozenset([Choice("log_softmax", "drop")]))
    lengths = Lengths(batch=4, ends=(10, 100), configs=(short, CHUNKS))
    tuned = apply_now(file_for(model, lengths=lengths), model, (X, Y), {})
    assert {"log_softmax", "head/cross_entropy"} <= tuned.board.sites.keys()


def test_threads_that_call_the_model_at_once_train_as_without(monkeypatch):
    monkeypatch.setattr(applying, "ELSEWHERE", threading.Event())
    torch.manual_seed(0)
    model, gradients = Model(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def train(part):
        functional.cross_entropy(model(X[part]).flatten(0, 1), Y[part].flatten(), reduction="sum").backward()

    for applies in (False, True):
        roots = apply_in_first_step(file_for(model)) if applies else None
        roots and roots.note(optimizer)
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

    def __init__(self):
        super().__init__()
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, labels=Y):
        words = self.words(x)
        attended = functional.scaled_dot_product_attention(self.queries(words), self.keys(words), self.inner(words))
        logits = self.head(attended)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1)), logits


def test_gradients_that_are_rounding_alone_keep_no_head_from_chunks():
    torch.manual_seed(0)
    model = WithKeys()
    board = detect(model, (X, Y), {}).switchboard(model)
    check = check_gradients(model, board, CHUNKS.choices, (X, Y), {})
    assert check.agrees, check
    assert 0 < check.worst < 1e-5
    wrong = Choice("head/cross_entropy", "chunk")
    board.heads["head"].__class__ = type("Wrong", (type(board.heads["head"]),), {"__call__": _scaled})
    assert not check_gradients(model, board, [wrong], (X, Y), {}).agrees


def _scaled(_head, forward, _module, hidden):
    return forward(hidden) * 0.999


def test_chunks_of_a_loss_that_the_script_computes_are_compared():
    torch.manual_seed(0)
    model = Model()
    board = detect(model, (X,), {}).switchboard(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check = check_gradients(model, board, CHUNKS.choices, (X,), {})
    assert check.agrees
    assert 0 < check.worst < 1e-5
    assert not board.heads["head"].made
