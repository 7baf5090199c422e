"""Decoders that fill a key-value cache in training, as those of Transformers do unless they are told not to."""

import pytest
import torch

from autorecompute.backends.torch.key_values import can_have_its_own
from autorecompute.plans import Choice
from stand_ins.surveyed import detect_in
from tiny_models import Training, differences, make, own_loss, tokens


def t5():
    """An encoder and a decoder, with a cache of two parts."""
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_heads": 4, "vocab_size": 100}
    config = T5Config(**sizes, num_layers=2, num_decoder_layers=2, decoder_start_token_id=0)
    return Training(T5ForConditionalGeneration(config), tokens(100, 4, 12), own_loss)


def bloom():
    """Blocks that return the cache."""
    from transformers import BloomConfig, BloomForCausalLM

    return Training(
        BloomForCausalLM(BloomConfig(n_layer=2, hidden_size=32, n_head=4, vocab_size=100)), tokens(100, 4, 12), own_loss
    )


MAKE = {"llama": lambda: make("llama"), "t5": t5, "bloom": bloom}
BLOCKS = {
    "llama": ["model.layers.*"],
    "t5": ["encoder.block.*", "decoder.block.*"],
    "bloom": ["transformer.h.*"],
}


def cached(name):
    """A training in which the model makes a cache in each forward."""
    torch.manual_seed(0)
    training = MAKE[name]()
    training.batch = {**training.batch, "use_cache": True}
    return training


def kept_bytes(training):
    """What is alive between the forward and the backward pass beyond what was before."""
    from autorecompute.backends.torch.live import LiveBytes, tensors_of

    meter = LiveBytes(tensors_of(training.model, (), training.batch))
    with meter:
        result = training.model(**training.batch)  # with its cache
        kept = meter.now - meter.base
    result.loss.backward()
    training.model.zero_grad()
    return kept


@pytest.mark.parametrize("name", MAKE)
def test_blocks_that_run_again_fill_caches_of_their_own(name):
    """Every checkpoint is offered and gives the same gradients, and the model's cache keeps nothing of it."""
    training = cached(name)
    expected, plain = training.gradients(), kept_bytes(training)
    found = detect_in(training)
    board = found.switchboard(training.model)
    sites = {site.name: site for site in found.sites}
    assert sites.keys() >= set(BLOCKS[name])
    for site in sites.values():
        for option in site.options:
            board.set([Choice(site.name, option)])
            assert differences(training.gradients(), expected) == [], (site.name, option)
    board.set([Choice(group, "checkpoint") for group in BLOCKS[name]])
    with_cache = kept_bytes(training)
    assert with_cache < plain / 2
    training.batch["use_cache"] = False
    if name != "bloom":  # whose last block returns what it has filled
        assert with_cache == kept_bytes(training)


def test_a_module_that_knows_no_place_in_a_cache_is_not_one_that_fills_it():
    """Whether its place is empty cannot be told."""
    from transformers import DynamicCache

    assert not can_have_its_own(torch.nn.Linear(2, 2), [DynamicCache()])
    assert can_have_its_own(make("llama").model.model.layers[1], [DynamicCache()])
