"""Makes the DataLoader that feeds the model give the target batch, where the script takes no batch from outside."""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoaderOverride:
    """Knows the DataLoader that served last; a training forward shows that it feeds the model."""

    def __init__(self) -> None:
        self._latest: Any = None

    def install(self) -> None:
        """Follows every DataLoader of the process from its next batch on."""
        from torch.utils.data import BatchSampler
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        serve = _BaseDataLoaderIter.__next__

        @functools.wraps(serve)
        def serve_and_note(iterator: Any) -> Any:
            # The sampler, not its loader: a loop over a nameless loader keeps the first alive and not the second.
            self._latest = iterator._index_sampler  # noqa: SLF001  (nothing public knows who serves)
            return serve(iterator)

        _BaseDataLoaderIter.__next__ = serve_and_note
        # torch reads the batch size once an epoch; ours reads it for every batch, so that it can change in between.
        BatchSampler.__iter__ = _draw_batches

    def apply(self, batch: int) -> bool:
        """Sets the batch of the loader that served last, from its next one on; ``False`` where it draws none itself."""
        from torch.utils.data import BatchSampler

        if not isinstance(self._latest, BatchSampler):
            return False
        self._latest.batch_size = batch
        return True


def _draw_batches(sampler: Any) -> Iterator[list[Any]]:
    indices = iter(sampler.sampler)
    while batch := list(itertools.islice(indices, sampler.batch_size)):
        if sampler.drop_last and len(batch) < sampler.batch_size:
            return
        yield batch
