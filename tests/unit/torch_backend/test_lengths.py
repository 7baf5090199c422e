import copy
import dataclasses
import functools
import gc
import threading
import types
from collections import UserDict

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from autorecompute.backends.torch.controller import memory_by_length, memory_of
from autorecompute.backends.torch.find.identity import name_of
from autorecompute.backends.torch.forecast.plans_file import PlansFile, read_plans_file
from autorecompute.backends.torch.switch import applying
from autorecompute.backends.torch.switch.applying import apply_now
from autorecompute.backends.torch.switch.intercepting import around_of
from autorecompute.backends.torch.switch.lengths import GivenLength, at_length, lengths_of
from autorecompute.backends.torch.worker import TorchBackend
from autorecompute.errors import UsageError
from autorecompute.plans import Config, Lengths
from autorecompute.plans.savings import SEQUENCE
from tiny_models import differences, make


def batch_of(size, samples=2):
    tokens = torch.arange(samples * size).reshape(samples, size) * 3
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones(samples, size, dtype=torch.int64),
        "position_ids": torch.arange(size).repeat(samples, 1),
        "causal": torch.ones(samples, 1, size, size, dtype=torch.bool),
        "shared": torch.zeros(size, size),
        "classes": torch.arange(samples),
    }


def shapes_of(batch):
    return {name: tuple(tensor.shape) for name, tensor in batch.items()}


@pytest.mark.parametrize("length", [3, 7, 12])
def test_every_tensor_that_counts_tokens_gets_the_length(length):
    found = at_length(batch_of(7), 2, length)
    assert shapes_of(found) == shapes_of(batch_of(length))
    assert found["position_ids"].tolist() == batch_of(length)["position_ids"].tolist()
    assert found["attention_mask"].all()
    assert found["classes"].tolist() == [0, 1]


def test_tokens_go_on_with_the_first_of_them_a_padded_mask_with_ones_and_types_stay_as_they_are():
    padded, types = torch.tensor([[1, 1, 0], [1, 0, 0]]), torch.zeros(2, 3, dtype=torch.int64)
    found = at_length({"ids": torch.tensor([[5, 2, 9], [4, 4, 3]]), "mask": padded, "types": types}, 2, 5)
    assert found["ids"].tolist() == [[5, 2, 9, 5, 2], [4, 4, 3, 4, 4]]
    assert found["mask"].tolist() == [[1, 1, 0, 1, 1], [1, 0, 0, 1, 1]]
    assert not found["types"].any()


def test_pictures_beside_texts_keep_their_size():
    found = at_length({"ids": torch.zeros(2, 7), "pixels": torch.zeros(2, 3, 7, 7)}, 2, 9)
    assert shapes_of(found) == {"ids": (2, 9), "pixels": (2, 3, 7, 7)}


@pytest.mark.parametrize(("first", "length", "start"), [(12, 4, 10), (15, 8, 8), (0, 4, 0)])
def test_a_shorter_batch_has_a_label_that_counts(first, length, start):
    labels = torch.arange(16).repeat(2, 1)
    given = {"ids": labels + 100, "labels": labels.masked_fill(labels < first, -100)}
    found = at_length(given, 2, length)
    assert found["ids"].tolist() == [list(range(100 + start, 100 + start + length))] * 2
    assert (found["labels"][:, 1:] >= 0).any()


def test_without_a_sequence_nothing_has_a_length():
    assert at_length({"pixels": torch.zeros(2, 3, 8, 8), "classes": torch.zeros(2)}, 2, 5) is None


@pytest.fixture
def give():
    serve = _BaseDataLoaderIter.__next__
    yield GivenLength
    _BaseDataLoaderIter.__next__ = serve


@pytest.mark.parametrize("kind", [dict, UserDict, lambda batch: tuple(batch.values())])
def test_every_loader_serves_the_length_from_its_next_batch_on(kind, give):
    given = give(11)
    served = iter(DataLoader(range(3), collate_fn=lambda _: kind(batch_of(7)), num_workers=0))

    def size_of(batch):
        return (batch[0] if isinstance(batch, tuple) else batch["input_ids"]).shape[1]

    sizes = [size_of(next(served))]
    given.length = 5
    assert [*sizes, size_of(next(served)), given.has_length, given.most] == [11, 5, True, 7]


def test_a_loader_of_pictures_serves_them_as_they_are(give):
    given = give(11)
    (pixels, _classes), *_ = DataLoader([(torch.zeros(3, 8, 8), 1)], batch_size=1)
    assert (tuple(pixels.shape), given.has_served, given.has_length) == ((1, 3, 8, 8), True, False)


BLOCKS = Config.parse(["transformer.h.*:checkpoint"])
GELU = Config.parse(["transformer.h.*.mlp.act/tanh:drop", "transformer.h.*.mlp:checkpoint:1"])


def file_for(model, *, batch=4):
    lengths = Lengths(batch=batch, ends=(4, 8, 16), configs=(Config(), GELU, BLOCKS))
    return PlansFile(config=BLOCKS, model=name_of(model), lengths=lengths)


def step(model, size, samples=4):
    tokens = torch.arange(samples * size).reshape(samples, size) % 50
    return model(input_ids=tokens, labels=tokens).loss


def take(model, sizes, look=lambda: None):
    torch.manual_seed(3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for size in sizes:
        step(model, size).backward()
        look()
        optimizer.step()
        optimizer.zero_grad()
    return dict(model.state_dict()) | {"next": torch.rand(1)}


@pytest.fixture
def gpt2():
    return make("gpt2").model


def assert_same_gradients(one, other):
    pairs = zip(one.named_parameters(), other.parameters(), strict=True)
    assert [name for (name, first), second in pairs if not torch.equal(first.grad, second.grad)] == []


def tuned_for(model, **given):
    tokens = torch.arange(64).reshape(4, 16) % 50
    return apply_now(file_for(model, **given), model, (), {"input_ids": tokens, "labels": tokens})


def test_what_was_verified_of_a_config_is_kept_while_others_are_on(gpt2):
    tuned = tuned_for(gpt2)
    step(gpt2, 8).backward()
    dropping = gpt2.get_submodule(next(effect.path for effect in tuned.board.effects if effect.option == "drop"))
    first = around_of(dropping)
    step(gpt2, 3).backward()
    assert not set(first) & set(around_of(dropping))
    step(gpt2, 8).backward()
    assert around_of(dropping) == first


def test_more_samples_than_were_tuned_train_with_the_config_of_the_longest(gpt2):
    tuned = tuned_for(gpt2, batch=3)
    step(gpt2, 4)
    assert Config(tuned.board.choices) == BLOCKS


def test_each_call_trains_with_the_config_of_its_length_bit_for_bit(gpt2):
    plain, sizes, seen = copy.deepcopy(gpt2), [16, 3, 8, 5, 4, 16], []
    tuned = tuned_for(gpt2)
    expected = take(plain, sizes)
    found = take(gpt2, sizes, lambda: seen.append(Config(tuned.board.choices)))
    assert seen == [BLOCKS, Config(), GELU, GELU, Config(), BLOCKS]
    assert [name for name, value in expected.items() if not torch.equal(value, found[name])] == []


def test_calls_of_several_lengths_before_one_backward_pass_have_the_same_gradients(gpt2, caplog):
    plain = copy.deepcopy(gpt2)
    tuned = tuned_for(gpt2)
    for model in (plain, gpt2):
        torch.manual_seed(5)
        sum(step(model, size) for size in (3, 16, 8)).backward()  # nothing is made again of the first one
    assert_same_gradients(plain, gpt2)
    assert [record.getMessage() for record in caplog.records if record.name == "autorecompute"] == [
        "the model is called again before its backward pass, and keeps the config of the first call"
    ]
    step(gpt2, 16)
    assert Config(tuned.board.choices) == BLOCKS


def test_a_call_whose_result_is_let_go_holds_nothing_up(gpt2):
    """Not even where nobody collects what lies in circles, and after a sentence was told."""
    tuned = tuned_for(gpt2)
    step(gpt2, 20)
    gc.disable()
    try:
        for size in (8, 16):
            step(gpt2, size)
    finally:
        gc.enable()
    assert Config(tuned.board.choices) == BLOCKS


def test_a_loss_that_is_kept_holds_nothing_up_where_nothing_is_made_again_in_it(gpt2):
    tuned, plain = tuned_for(gpt2), copy.deepcopy(gpt2)
    for model in (plain, gpt2):
        torch.manual_seed(5)
        kept = step(model, 3)
        (step(model, 16) + kept).backward()
    assert Config(tuned.board.choices) == BLOCKS
    assert_same_gradients(plain, gpt2)


def test_targets_that_are_longer_than_the_inputs_decide(gpt2):
    tuned = tuned_for(gpt2)
    given = [torch.zeros(4, 3), torch.zeros(4, 12), torch.zeros(9, 40), torch.zeros(4, 3, 50, 50)]
    assert lengths_of(given, 4) == {3, 12}
    config = tuned.board.by_length._config_for((torch.zeros(4, 3), torch.zeros(4, 12)), {})
    assert config == BLOCKS


@pytest.mark.parametrize("way", ["deepcopy", "disk"])
def test_a_model_with_a_forward_on_the_instance_is_switched_by_hooks_and_its_copies_are_not(gpt2, way, tmp_path):
    """Accelerate puts one there for mixed precision."""
    gpt2.forward = functools.partial(type(gpt2).forward, gpt2)
    tuned, seen = tuned_for(gpt2), []
    del gpt2.forward  # a copy would call the original
    gpt2.forward = types.MethodType(type(gpt2).forward, gpt2)
    for size in (3, 8, 16):
        step(gpt2, size).backward()
        seen.append(Config(tuned.board.choices))
    assert seen == [Config(), GELU, BLOCKS]
    if way == "disk":
        torch.save(gpt2, tmp_path / "model.pt")
        other = torch.load(tmp_path / "model.pt", weights_only=False)
    else:
        other = copy.deepcopy(gpt2)
    step(other, 3).backward()
    assert Config(tuned.board.choices) == BLOCKS


def test_a_longer_batch_than_was_tuned_is_told_once_and_trains_with_the_config_of_the_longest(gpt2, caplog):
    tuned = tuned_for(gpt2)
    for _ in range(2):
        step(gpt2, 20)
    assert Config(tuned.board.choices) == BLOCKS
    assert [record.getMessage() for record in caplog.records if record.name == "autorecompute"] == [
        "batches are longer than the 16 tokens that were tuned: their peaks are not known"
    ]


def test_evaluation_switches_nothing(gpt2):
    tuned = tuned_for(gpt2)
    step(gpt2.eval(), 3)
    with torch.no_grad():
        step(gpt2.train(), 3)
    assert Config(tuned.board.choices) == BLOCKS


def test_a_model_that_does_not_offer_the_plans_of_a_shorter_length_is_refused(gpt2):
    lengths = Lengths(batch=4, ends=(4, 16), configs=(Config.parse(["nowhere.*:checkpoint"]), BLOCKS))
    file = PlansFile(config=BLOCKS, model=name_of(gpt2), lengths=lengths)
    tokens = torch.zeros(4, 16, dtype=torch.int64)
    with pytest.raises(UsageError, match=r"does not offer nowhere"):
        apply_now(file, gpt2, (), {"input_ids": tokens, "labels": tokens})


def test_the_file_keeps_the_config_of_each_length(gpt2, tmp_path):
    wanted, file = file_for(gpt2), tmp_path / "plans.json"
    file.write_text(wanted.text)
    assert read_plans_file(file) == wanted


def test_a_file_with_two_configs_for_the_longest_batch_is_refused(gpt2, tmp_path):
    wanted = dataclasses.replace(file_for(gpt2), config=GELU)
    (tmp_path / "plans.json").write_text(wanted.text)
    with pytest.raises(UsageError, match="two configs for the longest batch"):
        read_plans_file(tmp_path / "plans.json")


@pytest.mark.parametrize(
    "lengths", ["[]", '{"batch": 4, "ends": [], "configs": []}', '{"batch": 0, "ends": [4], "configs": [[]]}']
)
def test_a_file_whose_lengths_say_nothing_is_refused(gpt2, lengths, tmp_path):
    text = PlansFile(config=BLOCKS, model=name_of(gpt2)).text.rstrip().rstrip("}") + f', "lengths": {lengths}}}'
    (tmp_path / "plans.json").write_text(text)
    with pytest.raises(UsageError, match="Emit it again"):
        read_plans_file(tmp_path / "plans.json")


def test_an_answer_is_followed_until_another_one_takes_its_place(gpt2):
    tuned = tuned_for(gpt2)
    step(gpt2, 3)
    assert Config(tuned.board.choices) == Config()
    tuned.follow_lengths(Lengths(batch=4, ends=(8, 16), configs=(GELU, BLOCKS)))
    tuned.switch(BLOCKS)
    step(gpt2, 3)
    assert Config(tuned.board.choices) == GELU
    tuned.follow_lengths(None)
    tuned.switch(BLOCKS)
    step(gpt2, 3)
    assert Config(tuned.board.choices) == BLOCKS


class Listener:
    """Follows a training whose longest batch was told."""

    fake_card, fake_ranks, on_failure, target_batch = None, 0, None, None
    replaces_checkpointing = is_exact = is_trial = is_surveyed = False

    def __init__(self, longest):
        self.longest, self.detection, self.look = longest, None, lambda _check: None

    def on_session(self, detect):
        self.detection = detect()
        return Config()

    def on_forward(self, _batch, check):
        if self.detection is not None:
            self.look(check)


def test_a_longer_step_beside_a_training_leaves_it_as_it_is_and_takes_what_was_forecast(gpt2, monkeypatch):
    monkeypatch.setattr(applying, "ELSEWHERE", threading.Event())
    plain, listener, backend = copy.deepcopy(gpt2), Listener(24), TorchBackend()
    peaks = []

    def look(check):
        meter = backend.live_meter()
        meter.start()
        backend.step_beside(BLOCKS)
        peaks.append((meter.stop(), check(BLOCKS, compares=False).step_bytes))

    listener.look = look
    backend.install(listener)
    try:
        found = take(gpt2, [12] * 3)
    finally:
        backend.uninstall()
    assert differences(found, take(plain, [12] * 3)) == []
    detection = listener.detection
    forecast = memory_of(detection).forecast(BLOCKS, detection.dims).live_bytes
    assert detection.dims[SEQUENCE] == 24
    assert list(memory_by_length(detection)) == [12, 18]
    assert {whole for _, whole in peaks} == {forecast}
    assert [beside for beside, _ in peaks] == pytest.approx([forecast] * 2, rel=0.05)
