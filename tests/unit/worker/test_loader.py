import types

import pytest

from autorecompute.worker.agent import _draw_batches


def make_sampler(length, batch_size, *, drop_last=False):
    """What torch's BatchSampler offers of itself."""
    return types.SimpleNamespace(sampler=range(length), batch_size=batch_size, drop_last=drop_last)


@pytest.mark.parametrize(
    ("length", "drop_last", "sizes"),
    [(10, False, [4, 4, 2]), (10, True, [4, 4]), (8, True, [4, 4]), (3, True, []), (3, False, [3]), (0, False, [])],
)
def test_every_sample_is_drawn_once_and_the_rest_as_asked(length, drop_last, sizes):
    batches = list(_draw_batches(make_sampler(length, 4, drop_last=drop_last)))
    assert [len(batch) for batch in batches] == sizes
    assert [index for batch in batches for index in batch] == list(range(sum(sizes)))


def test_a_new_size_holds_from_the_next_batch_on():
    sampler = make_sampler(12, 2)
    drawing = _draw_batches(sampler)
    first = next(drawing)
    sampler.batch_size = 5
    assert [first, *drawing] == [[0, 1], [2, 3, 4, 5, 6], [7, 8, 9, 10, 11]]
