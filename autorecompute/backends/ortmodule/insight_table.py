"""Reads the insight table that ORT hands out as text, beside its plans: nothing else names the activations."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from autorecompute.backends.ortmodule.grammar import COMPROMISE, RECOMPUTE
from autorecompute.backends.ortmodule.insight import merge_alike
from autorecompute.plans import Activation, Alternative, Choice, Cluster
from autorecompute.plans.saved import PERCENT
from autorecompute.plans.savings import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_OPTIONS = {"Recompute": RECOMPUTE, "RecomputeWithCompromise": COMPROMISE}
_CLUSTER = re.compile(r"\|(\d+)\s*\|")
_CHOICE = re.compile(rf">>Option \d+\s*: ({'|'.join(_OPTIONS)}) subgraph (\S+)")
_REUSE = re.compile(r"Output (\d+)\((\d+)\)")
_ACTIVATION = re.compile(r"- Output (\d+)\s*: \[(.*)\], byte/elem: (\d+), (\d+)% saved")


def read_clusters(table: str, names: Mapping[str, str]) -> tuple[Cluster, ...]:
    """Return the clusters of ORT's table, equal ones told as one; none where the text is no such table.

    Args:
        table: What ``get_serialized_ortmodule_memory_stat`` printed, in ORT 1.17, 1.18 or 1.19.
        names: What to call the symbolic dimensions instead of ORT's names.
    """
    clusters = []
    for block in _blocks(table.splitlines(), _CLUSTER):
        match = _CLUSTER.match(block[0])
        assert match is not None, "a block begins where its pattern is found"
        alternatives = tuple(_read_alternative(lines, names) for lines in _blocks(block, _CHOICE))
        clusters.append(Cluster(occurrences=int(match[1]), alternatives=alternatives))
    return merge_alike(clusters)


def _blocks(lines: Sequence[str], beginning: re.Pattern[str]) -> Iterator[list[str]]:
    """Yield the lines in blocks that each begin with a line in which the pattern is found."""
    starts = [number for number, line in enumerate(lines) if beginning.search(line)]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        yield list(lines[start:end])


def _read_alternative(block: Sequence[str], names: Mapping[str, str]) -> Alternative:
    match = _CHOICE.search(block[0])
    assert match is not None, "a block begins where its pattern is found"
    reuse_lines = "".join(line for line in block if "ReuseFreq" in line)
    reuses = {int(output): int(count) for output, count in _REUSE.findall(reuse_lines)}
    activations = [
        _make_activation(found, names, reuses) for line in block if (found := _ACTIVATION.search(line)) is not None
    ]
    return Alternative(choice=Choice(match[2], _OPTIONS[match[1]]), activations=tuple(activations))


def _make_activation(match: re.Match[str], names: Mapping[str, str], reuses: Mapping[int, int]) -> Activation:
    output, shape, element_bytes, percent = match.groups()
    # ORT cuts the percentage down to a whole number, but what a cast keeps of an element is whole bytes.
    kept_bytes = round(int(element_bytes) * (PERCENT - int(percent)) / PERCENT)
    return Activation(
        output=int(output),
        shape=tuple(simplify(size, names) for size in _split_shape(shape)),
        element_bytes=int(element_bytes),
        saved_bytes=int(element_bytes) - kept_bytes,
        reuse_frequency=reuses.get(int(output), 0),
    )


def _split_shape(text: str) -> list[str]:
    """Return the dimensions of ``((batch)*(4)*(2*length))``, or of ``batch x 4 x 2*length x ``."""
    if " x " in text:
        return [size.strip() for size in text.split(" x ") if size.strip()]
    if not text.startswith("("):
        return [text] if text else []
    sizes, depth = [""], 0
    for sign in text[1:-1]:
        depth += (sign == "(") - (sign == ")")
        if sign == "*" and depth == 0:
            sizes.append("")
        else:
            sizes[-1] += sign
    return [size for size in sizes if size]
