"""Which sizes the batches of a training have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autorecompute.backends.torch.identity import sizes_of
from autorecompute.backends.torch.storages import tensors_in

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class BatchSizes:
    """Keeps the least and the most of each size of the batches so far."""

    def __init__(self) -> None:
        self._sizes: dict[str, tuple[int, int]] = {}

    def note(self, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int) -> None:
        """Note a call of the model with these arguments, and with so many samples."""
        for name, size in sizes_of(list(tensors_in((args, kwargs))), batch).items():
            least, most = self._sizes.get(name, (size, size))
            self._sizes[name] = min(least, size), max(most, size)

    def told(self) -> Iterator[str]:
        """Yield a sentence for each size that differs from batch to batch."""
        for name, (least, most) in sorted(self._sizes.items()):
            if least < most:
                yield f"batches have a {name} of {least} to {most}: peaks hold up to the largest that was measured"
