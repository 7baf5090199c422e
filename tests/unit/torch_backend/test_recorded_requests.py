"""The model of PyTorch's caching allocator, held against the one of an H100, whose requests were recorded there.

``python benchmarks/card_memory.py --requests`` records them on the card at hand.
"""

import gzip
import json
from pathlib import Path

import pytest

from autorecompute.backends.torch.caching_allocator import AllocatorSettings, CachingAllocator, Request

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "h100_requests.json.gz").read_bytes()))["recorded"]


@pytest.mark.parametrize("found", RECORDED, ids=lambda found: found["settings"] or "default")
def test_the_same_requests_reserve_what_they_reserved_on_the_card(found):
    """To the byte: allocated, requested and reserved at their peaks, over three steps of training."""
    allocator = CachingAllocator(AllocatorSettings.of({"PYTORCH_ALLOC_CONF": found["settings"]}))
    allocator.answer(Request(storage, size) for storage, size in found["requests"])
    assert {name: getattr(allocator.peak, name) for name in found["peaks"]} == found["peaks"]
