"""The map of a model's layers: what each of them leaves for the backward pass, and what is recomputed in it."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autorecompute.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autorecompute.memory import Timeline
    from autorecompute.plans import Config, Plan

STAR = "*"
"""Stands in a plan's label for the numbers of the layers that it is of."""

WHOLE = "all of it"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerRow:
    """Layers in a row of which the same is known, or what lies outside of all of them.

    Attributes:
        name: Their names: ``h.0 to h.4``.
        before_bytes: What each of them keeps for the backward pass without recompute.
        after_bytes: The same with the config.
        options: What is recomputed in each of them, in words.
    """

    name: str
    before_bytes: int
    after_bytes: int
    options: str

    @property
    def before(self) -> str:
        """Return what each keeps without recompute, in words."""
        return format_bytes(self.before_bytes)

    @property
    def after(self) -> str:
        """Return the same with the config."""
        return format_bytes(self.after_bytes)


def map_layers(before: Timeline, after: Timeline, plans: Sequence[Plan], config: Config) -> tuple[LayerRow, ...]:
    """Return the layers in the order of the forward pass; nothing where the parts of the step are no layers.

    Args:
        before: A step without recompute, whose operations are named after the layers.
        after: The same with the config.
        plans: The plans of the model; those of layers that are alike have a star in their labels.
        config: What is recomputed.
    """
    kept, kept_after = _kept_by_layer(before), _kept_by_layer(after)
    options = _options_by_layer(list(kept), plans, config)
    if not options:
        return ()
    rows = [
        LayerRow(name=name, before_bytes=kept[name], after_bytes=kept_after[name], options=options.get(name, ""))
        for name in sorted(kept, key=lambda name: name not in options)
    ]
    return tuple(_joined(rows, options))


def _kept_by_layer(timeline: Timeline) -> Counter[str]:
    profile, kept = timeline.profile, Counter[str]()
    for operation in profile.operations[: profile.backward]:
        kept[operation.operator] += 0  # one that keeps nothing is a layer, too
    for tensor, size in zip(profile.tensors, timeline.sizes, strict=True):
        if profile.is_stashed(tensor):
            kept[profile.operations[tensor.first].operator] += size
    return kept


def _options_by_layer(names: Sequence[str], plans: Sequence[Plan], config: Config) -> dict[str, str]:
    """Return what is recomputed in each layer that a plan is of."""
    found: dict[str, list[str]] = {}
    for plan in plans:
        stem, star, part = plan.label.partition(STAR)
        alike = re.compile(re.escape(stem) + r"\d+")
        layers = [name for name in names if alike.fullmatch(name)] if star else []
        for place, name in enumerate(layers):
            told = found.setdefault(name, [])
            # A plan may have several places in each layer.
            if config.count_of(plan) * len(layers) > place * plan.occurrences:
                told.append(part.strip(".,/ ") or WHOLE)
    return {name: ", ".join(told) for name, told in found.items()}


def _joined(rows: Sequence[LayerRow], options: dict[str, str]) -> Iterator[LayerRow]:
    """Layers in a row that are alike, as one."""

    def likeness(row: LayerRow) -> tuple[object, ...]:
        place = "" if row.name in options else row.name
        return (place, row.name.rstrip("0123456789"), row.before_bytes, row.after_bytes, row.options)

    for _, group in itertools.groupby(rows, likeness):
        first, *others = group
        name = f"{first.name} to {others[-1].name}" if others else first.name
        yield LayerRow(name=name, before_bytes=first.before_bytes, after_bytes=first.after_bytes, options=first.options)
