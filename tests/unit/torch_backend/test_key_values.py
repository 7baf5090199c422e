import pytest
import torch
from transformers import DynamicCache

from autorecompute.backends.torch.fake.live import LiveBytes, tensors_of
from autorecompute.backends.torch.switch.checkpoints import can_have_its_own
from autorecompute.plans import Choice
from stand_ins.surveyed import detect_in
from tiny_models import Training, differences, make, of_transformers, own_loss, tokens


def t5():
    """An encoder and a decoder, with a cache of two parts."""
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 100, "num_layers": 2}
    return of_transformers("T5", "ForConditionalGeneration", **sizes, decoder_start_token_id=0)


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
        (lambda: make("llama").model, ["model.layers.*"]),
        (t5, ["encoder.block.*", "decoder.block.*"]),
        (bloom, ["transformer.h.*"]),
    ],
    ids=["llama", "t5", "bloom"],
)
def test_blocks_that_run_again_fill_caches_of_their_own(make_model, blocks):
    torch.manual_seed(0)
    training = Training(make_model(), {**tokens(100, 4, 12), "use_cache": True}, own_loss)
    expected, plain = training.gradients(), kept_bytes(training)
    found = detect_in(training)
    board = found.switchboard(training.model)
    assert {site.name for site in found.sites} >= set(blocks)
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
    """Whether its place is empty cannot be told."""
    assert not can_have_its_own(torch.nn.Linear(2, 2), [DynamicCache()])
    assert can_have_its_own(make("llama").model.model.layers[1], [DynamicCache()])
