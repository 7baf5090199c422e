"""What the compiler would keep at each budget, found without a step: the distinct plans among them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch._functorch import config as functorch
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import config as inductor
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from autorecompute.backends.common.failures import first_line
from autorecompute.backends.torch.compiled.budgets import VALUES, KeepRandomNumbers
from autorecompute.backends.torch.untouched import copies_of, untouched

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch.nn import Module


class _KnownError(Exception):
    """All is known that the compilation was begun for."""


class _Partitions(CustomPartitionerFn):  # type: ignore[misc]
    """Cuts a joint graph at every budget, and ends the compilation.

    Attributes:
        saved: The names of the values that are kept, and their bytes, at each budget; at ``None`` the script's own.
    """

    def __init__(self) -> None:
        self.saved: dict[float | None, tuple[frozenset[str], int]] = {}

    def __call__(self, graph: torch.fx.GraphModule, inputs: Sequence[object], **options: Any) -> Any:
        """Raises: there is nothing to go on with."""
        for value in (None, *VALUES):
            budget = functorch.activation_memory_budget if value is None else value
            with functorch.patch(activation_memory_budget=budget):
                forward, _ = min_cut_rematerialization_partition(copy.deepcopy(graph), inputs, **options)
            self.saved[value] = _saved_by(forward, options["num_fwd_outputs"])
        raise _KnownError

    def uuid(self) -> None:
        """Nothing of this may be found in a cache."""


def _saved_by(forward: torch.fx.GraphModule, outputs: int) -> tuple[frozenset[str], int]:
    """The values that a forward graph returns for the backward pass, and the bytes of those that it made."""
    kept = [node for node in forward.graph.output_node().args[0][outputs:] if isinstance(node, torch.fx.Node)]
    made = [node.meta.get("val") for node in kept if node.op != "placeholder"]
    size = sum(_bytes_of(value) for value in made if isinstance(value, torch.Tensor))
    return frozenset(node.name for node in kept), size


def _bytes_of(value: torch.Tensor) -> int:
    count = value.numel()
    hint = count.node.hint if isinstance(count, torch.SymInt) else count
    size: int = value.element_size()
    return int(hint or 0) * size


def distinct_budgets(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[float, int], str]:
    """The budgets that make the compiler keep something else, with the bytes that each keeps less.

    The model is traced as for a step and not run; of budgets that come to the same the largest stands for them. Of a
    model that is compiled in several graphs the first one tells. Where the model cannot be traced there are none, and
    the second of the results says why.
    """
    found = _Partitions()
    args, kwargs = copies_of((tuple(args), dict(kwargs)))
    patched = inductor.patch(
        custom_partitioner_fn=found, joint_custom_post_pass=KeepRandomNumbers(inductor.joint_custom_post_pass)
    )
    torch._dynamo.reset()
    reason = "it compiles nothing"
    try:
        with untouched(model), torch.enable_grad(), patched:
            model(*args, **kwargs)
    except Exception as error:  # noqa: BLE001  (the compiler wraps what ends it, and fails by itself in many ways)
        reason = first_line(error)
    torch._dynamo.reset()
    if found.saved.keys() != {None, *VALUES}:
        return {}, reason
    seen, most = {found.saved[None][0]}, found.saved[None][1]
    distinct: dict[float, int] = {}
    for value in VALUES:
        if found.saved[value][0] not in seen:
            seen.add(found.saved[value][0])
            distinct[value] = most - found.saved[value][1]
    return distinct, ""
