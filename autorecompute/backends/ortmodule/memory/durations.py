"""How long the operations of profiled steps take, where something else disturbed some of them."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from autorecompute.memory.step import Operation, StepProfile


def settle_durations(profiles: Sequence[StepProfile]) -> list[StepProfile]:
    """Return the same steps, with the time that operations of one form took as a rule: the lower median of all of them.

    A profile times each operation once. On a busy machine one may lose its core meanwhile, and take a hundred times as
    long as the same operation of the next layer. Like are operations of one kind that read and make the same sizes.

    Args:
        profiles: Steps at the same dimensions.
    """
    seconds = defaultdict(list)
    forms = [_forms(profile) for profile in profiles]
    for profile, own in zip(profiles, forms, strict=True):
        for operation, form in zip(profile.operations, own, strict=True):
            seconds[form].append(operation.seconds)
    usual = {form: statistics.median_low(found) for form, found in seconds.items()}
    return [
        dataclasses.replace(
            profile,
            operations=tuple(
                dataclasses.replace(operation, seconds=usual[form])
                for operation, form in zip(profile.operations, own, strict=True)
            ),
        )
        for profile, own in zip(profiles, forms, strict=True)
    ]


def _forms(profile: StepProfile) -> list[Hashable]:
    """Return what each operation computes: its kind and the sizes of what it reads and makes."""
    sizes = {tensor.name: (tensor.shape, tensor.element_bytes) for tensor in profile.tensors}
    found: list[Hashable] = []
    for operation in profile.operations:
        if operation.shares and operation.reads[0] in sizes:
            # Its first result is a view, which is no tensor of its own.
            sizes.setdefault(operation.makes[0], sizes[operation.reads[0]])
        found.append(_form(operation, sizes))
    return found


def _form(operation: Operation, sizes: dict[str, tuple[tuple[str, ...], int]]) -> Hashable:
    reads, makes = (tuple(map(sizes.get, names)) for names in (operation.reads, operation.makes))
    return operation.operator, reads, makes
