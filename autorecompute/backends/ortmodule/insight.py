"""Puts the clusters of ORT's insight table together that are alike."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from autorecompute.plans import Alternative, Choice, Cluster

if TYPE_CHECKING:
    from collections.abc import Iterable


def merge_alike(clusters: Iterable[Cluster]) -> tuple[Cluster, ...]:
    """Return the clusters with equal ones told as one, most frequent first.

    ORT 1.19 writes the outputs of a node in the order of a hash table and so lists equal nodes in several rows.
    """
    occurrences: Counter[tuple[Alternative, ...]] = Counter()
    reuses: Counter[tuple[tuple[Alternative, ...], Choice, int]] = Counter()
    for cluster in clusters:
        kind = tuple(_without_reuse(alternative) for alternative in cluster.alternatives)
        occurrences[kind] += cluster.occurrences
        for alternative in cluster.alternatives:
            for activation in alternative.activations:
                reuses[kind, alternative.choice, activation.output] += activation.reuse_frequency
    merged = [
        Cluster(occurrences=count, alternatives=tuple(_with_reuse(kind, found, reuses) for found in kind))
        for kind, count in occurrences.items()
    ]
    return tuple(sorted(merged, key=lambda cluster: (-cluster.occurrences, str(cluster.alternatives))))


def _without_reuse(alternative: Alternative) -> Alternative:
    plain = [replace(activation, reuse_frequency=0) for activation in alternative.activations]
    return replace(alternative, activations=tuple(sorted(plain, key=lambda activation: activation.output)))


def _with_reuse(
    kind: tuple[Alternative, ...],
    alternative: Alternative,
    reuses: Counter[tuple[tuple[Alternative, ...], Choice, int]],
) -> Alternative:
    return replace(
        alternative,
        activations=tuple(
            replace(activation, reuse_frequency=reuses[kind, alternative.choice, activation.output])
            for activation in alternative.activations
        ),
    )
