"""Reads the insight table that ORT hands out as text, beside its plans: nothing else names the activations."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING

from autorecompute.plans import Activation, Choice, Insight, Option, Row, merge_alike
from autorecompute.plans.insight import PERCENT
from autorecompute.plans.savings import simplify

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_OPTIONS = {"Recompute": Option.RECOMPUTE, "RecomputeWithCompromise": Option.RECOMPUTE_WITH_COMPROMISE}
_CLUSTER = re.compile(r"\|(\d+)\s*\|")
_CHOICE = re.compile(rf">>Option \d+\s*: ({'|'.join(_OPTIONS)}) subgraph (\S+)")
_REUSE = re.compile(r"Output (\d+)\((\d+)\)")
_ACTIVATION = re.compile(r"- Output (\d+)\s*: \[(.*)\], byte/elem: (\d+), (\d+)% saved")


def read_insights(table: str, names: Mapping[str, str]) -> tuple[Insight, ...]:
    """The insights of ORT's table, equal ones told as one; none where the text is no such table.

    Args:
        table: What ``get_serialized_ortmodule_memory_stat`` printed, in ORT 1.17, 1.18 or 1.19.
        names: What to call the symbolic dimensions instead of ORT's names.
    """
    insights = []
    for cluster in _blocks(table.splitlines(), _CLUSTER):
        match = _CLUSTER.match(cluster[0])
        assert match is not None, "a block begins where its pattern is found"
        choices = tuple(_read_choice(block, names) for block in _blocks(cluster, _CHOICE))
        insights.append(Insight(frequency=int(match[1]), choices=choices))
    return merge_alike(insights)


def _blocks(lines: Sequence[str], beginning: re.Pattern[str]) -> Iterator[list[str]]:
    """The lines in blocks that each begin with a line in which the pattern is found."""
    starts = [number for number, line in enumerate(lines) if beginning.search(line)]
    for start, end in itertools.pairwise([*starts, len(lines)]):
        yield list(lines[start:end])


def _read_choice(block: Sequence[str], names: Mapping[str, str]) -> Choice:
    match = _CHOICE.search(block[0])
    assert match is not None, "a block begins where its pattern is found"
    reuse_lines = "".join(line for line in block if "ReuseFreq" in line)
    reuses = {int(output): int(count) for output, count in _REUSE.findall(reuse_lines)}
    activations = [
        _make_activation(found, names, reuses) for line in block if (found := _ACTIVATION.search(line)) is not None
    ]
    return Choice(row=Row(match[2], _OPTIONS[match[1]]), activations=tuple(activations))


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
    """The dimensions of ``((batch)*(4)*(2*length))``, or of ``batch x 4 x 2*length x ``, as some versions write it."""
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
