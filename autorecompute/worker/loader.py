"""Makes the DataLoader that feeds the model give the target batch, where the script takes no batch from outside."""

from __future__ import annotations

import functools
import hashlib
import itertools
import sys
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, MutableMapping

    from autorecompute.worker.protocol import Settings


def override_loader(settings: Settings) -> LoaderOverride | None:
    """Return what follows every DataLoader of the process from now on.

    ``None`` where the script takes a batch, or needs none.

    Args:
        settings: What the controller said at the start.
    """
    if not settings.override_loader or settings.target_batch is None:
        return None
    override = LoaderOverride(settings.target_batch, settings.loader)
    override.install()
    return override


class LoaderOverride:
    """Knows the DataLoader that served last; a training forward shows that it feeds the model.

    A script may make the same loader again for each epoch, and a later process of the same script certainly does. So
    loaders are known by their origin, the lines of code that made them: one that comes from where the model was fed
    from before gives the target from its first batch on.

    Args:
        batch: What the model is to receive.
        origin: Where its loader is made, as an earlier process of the script has told; empty where none has.
    """

    def __init__(self, batch: int, origin: str = "") -> None:
        self._batch = batch
        self.origin = origin
        """Where the loader that feeds the model is made; empty as long as nobody knows."""
        self._latest: Any = None
        self._origins: MutableMapping[Any, str] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        """Follow every DataLoader of the process, from its making on."""
        from torch.utils.data import BatchSampler
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        make, serve = BatchSampler.__init__, _BaseDataLoaderIter.__next__

        @functools.wraps(make)
        def make_and_note(sampler: Any, *args: Any, **kwargs: Any) -> None:
            make(sampler, *args, **kwargs)
            self._origins[sampler] = origin = _origin()
            if self.origin and origin == self.origin:
                sampler.batch_size = self._batch

        @functools.wraps(serve)
        def serve_and_note(iterator: Any) -> Any:
            # The sampler, not its loader: a loop over a nameless loader keeps the first alive and not the second.
            self._latest = iterator._index_sampler  # noqa: SLF001  (nothing public knows who serves)
            return serve(iterator)

        BatchSampler.__init__ = make_and_note
        _BaseDataLoaderIter.__next__ = serve_and_note
        # torch reads the batch size once an epoch; ours reads it for every batch, so that it can change in between.
        BatchSampler.__iter__ = _draw_batches

    def change(self, batch: int) -> None:
        """Have the model receive another batch, from the next time on that it is applied."""
        self._batch = batch

    def apply(self) -> bool:
        """Set the batch of the loader that served last, from its next one on; ``False`` where it draws none itself."""
        samplers = list(_nested(self._latest))
        if not samplers:
            return False
        for sampler in samplers:
            sampler.batch_size = self._batch
        origin = self._origins.get(samplers[-1], "")
        # Loaders for training and evaluation may come from one loop; then its lines do not tell them apart.
        self.origin = origin if list(self._origins.values()).count(origin) == 1 else ""
        return True


def _nested(sampler: Any) -> Iterator[Any]:
    """Yield the batch sampler with those inside of it.

    Accelerate wraps one for each rank, and asks both for their size.
    """
    from torch.utils.data import BatchSampler

    while isinstance(sampler, BatchSampler):
        yield sampler
        sampler = getattr(sampler, "batch_sampler", None)


def _origin() -> str:
    """Return the stack of the caller's caller in lines of code, the same in every process of one script."""
    frame, digest = sys._getframe(2), hashlib.sha256()  # noqa: SLF001  (a stack with source lines would read files)
    while frame is not None:
        digest.update(f"{frame.f_code.co_filename}:{frame.f_lineno}\n".encode(errors="surrogateescape"))
        frame = frame.f_back  # type: ignore[assignment]
    return digest.hexdigest()


def _draw_batches(sampler: Any) -> Iterator[list[Any]]:
    indices = iter(sampler.sampler)
    while batch := list(itertools.islice(indices, sampler.batch_size)):
        if sampler.drop_last and len(batch) < sampler.batch_size:
            return
        yield batch
