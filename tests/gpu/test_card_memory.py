"""The model of PyTorch's caching allocator, held against the allocator of a real card."""

import pytest

from autorecompute.units import MIB

pytestmark = pytest.mark.gpu

WORKSPACES = 80 * MIB
"""What cuBLAS may take for two threads, 32 MiB each on Hopper, with their segments."""

SETTINGS = {"": WORKSPACES, "expandable_segments:True": WORKSPACES, "max_split_size_mb:64": 300 * MIB}
"""What a fake step may lack. What reserves so much more where large blocks are not split is not known."""


@pytest.fixture(scope="module", params=SETTINGS)
def setting(request):
    """One of them."""
    return request.param


@pytest.fixture(scope="module")
def figures(setting, compared_memory):
    """Those under the setting."""
    return compared_memory[setting]


def test_the_same_requests_reserve_the_same_bytes(figures):
    """Allocated, requested and reserved, each at its peak."""
    assert {name: found["replayed"] for name, found in figures.items()} == {
        name: found["card"] for name, found in figures.items()
    }


def test_a_fake_step_differs_by_no_more_than_the_workspaces_of_libraries(figures, setting):
    """They are not tensors, so no fake step has them."""
    assert all(abs(found["card"] - found["faked"]) <= SETTINGS[setting] for found in figures.values()), figures
