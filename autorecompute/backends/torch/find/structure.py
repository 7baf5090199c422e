"""The repeated units of a model, and what of it is sharded."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor
    from torch.nn import Module, Parameter


STAR = "*"
_CONTAINERS = frozenset({"ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
_NUMBERED = re.compile(r"(.*?)(\d+)")


@dataclasses.dataclass(frozen=True)
class Structure:
    """Repetition of the modules of a model.

    Attributes:
        groups: For each group its modules' paths, in the order of the model. The model itself is in none.
        units: The paths of all units, in the order of the model, none inside another; empty where nothing repeats.
    """

    groups: Mapping[str, tuple[str, ...]]
    units: tuple[str, ...]

    def group_of(self, path: str) -> str:
        """Return the group in which the module with this path is; empty for the model itself."""
        return next((group for group, paths in self.groups.items() if path in paths), "")

    def unit_of(self, path: str) -> str:
        """Return the unit that is this module or holds it; empty where there is none."""
        return next((unit for unit in self.units if is_within(path, unit)), "")

    def units_with(self, path: str) -> tuple[int, ...]:
        """Return the unit that is this module or holds it, or else those that it holds, by their places."""
        around = tuple(place for place, unit in enumerate(self.units) if is_within(path, unit))
        return around[:1] or tuple(place for place, unit in enumerate(self.units) if is_within(unit, path))


def is_within(path: str, ancestor: str) -> bool:
    """Tell whether a module's path is the ancestor's or below it, as a function that it calls is (``attn/name``)."""
    return not ancestor or path == ancestor or path.startswith((f"{ancestor}.", f"{ancestor}/"))


def structure_of(model: Module) -> Structure:
    """Return the groups and units of a model."""
    names: dict[str, str] = {"": ""}
    repeats: dict[str, list[str]] = {}
    for path, module in model.named_modules():
        for starred, children in _children(module):
            for name, _ in children:
                full = _join(path, name)
                names[full] = _join(names[path], starred or name)
                if starred:
                    repeats.setdefault(full, []).extend(_join(path, sibling) for sibling, _ in children)
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for path, name in names.items():
        if path:
            groups[name].append(path)
    return Structure(groups={name: tuple(paths) for name, paths in groups.items()}, units=tuple(_units(model, repeats)))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _children(module: Module) -> Iterator[tuple[str, list[tuple[str, Module]]]]:
    """Yield the children that are like one another, with the name they share; a name of none for a child alone."""
    alike: dict[tuple[str, type], list[tuple[str, Module]]] = collections.defaultdict(list)
    for name, child in module.named_children():
        match = _NUMBERED.fullmatch(name)
        # Stages are often called layer1, layer2; what has no children of its own (norm1, norm2) is no repeated part.
        is_stage = match and (match[1] == "" or type(child).__name__ in {"Sequential", "ModuleList"})
        alike[(match[1] if match and is_stage else name, type(child))].append((name, child))
    kinds = collections.Counter(prefix for (prefix, _), found in alike.items() if _repeats(found))
    for (prefix, kind), found in alike.items():
        if not _repeats(found):
            yield from (("", [one]) for one in found)
        else:
            yield prefix + STAR + (f"({kind.__name__})" if kinds[prefix] > 1 else ""), found


def _repeats(children: list[tuple[str, Module]]) -> bool:
    """Tell whether these are several of a kind: layers in a list, not the two activations of a ``Sequential``."""
    return len(children) > 1 and any(True for _, child in children for _ in child.children())


def _units(model: Module, repeats: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield the outermost repeated modules that have like parameters, else the innermost ones.

    They are called as modules.
    """
    # The others are never called themselves.
    called = {path: module for path, module in model.named_modules() if type(module).__name__ not in _CONTAINERS}
    repeated = [path for path in called if path in repeats]
    alike = {path for path in repeated if len({_shapes(called[sibling]) for sibling in repeats[path]}) == 1}
    taken: list[str] = []
    for path in repeated:
        below = [other for other in repeated if other != path and is_within(other, path)]
        is_stage = path not in alike and bool(below)
        if not is_stage and not any(is_within(path, unit) for unit in taken):
            taken.append(path)
            yield path


def _shapes(module: Module) -> tuple[tuple[str, tuple[int, ...]], ...]:
    return tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def is_sharded(module: Module) -> bool:
    """Tell whether ``fully_shard`` was applied to this module."""
    return is_named(module, "FSDPModule", "torch.distributed")


def is_named(value: object, starts: str | tuple[str, ...], package: str) -> bool:
    """Tell whether a class of the object has such a name; a class of a package that need not be installed."""
    return any(kind.__name__.startswith(starts) and kind.__module__.startswith(package) for kind in type(value).__mro__)


def is_anywhere(model: Module, is_so: bool) -> bool:  # noqa: FBT001  (what is asked of all ranks)
    """Tell whether it is so on any rank of a sharded model: all of them have to take the same steps."""
    if not is_sharded(model):
        return is_so
    told = torch.tensor(int(is_so), device=next(model.parameters()).device)
    torch.distributed.all_reduce(told, op=torch.distributed.ReduceOp.MAX)
    return bool(told.item())


@contextlib.contextmanager
def forgotten(model: Module) -> Iterator[None]:
    """Whatever the model runs inside is no part of a step; nothing else happens with one that is not sharded.

    The gradients that it has are kept, those that it accumulates without a reduction as well: torch 2.15 drops them.
    """
    parameters = [one for group in _groups_of(model) for one in group.fsdp_params]
    holders = [getattr(one, name, None) for one in parameters for name in ("sharded_param", "_unsharded_param")]
    kept = [(holder, holder.grad) for holder in holders if holder is not None]
    try:
        yield
    finally:
        if is_sharded(model):
            model.reset_iter_state()
        for holder, gradient in kept:
            holder.grad = gradient


def gradients_of(model: Module, loss: Tensor, parameters: Sequence[Parameter]) -> list[Tensor | None]:
    """Return this rank's shards of the gradients, summed over all ranks; leave those that the parameters have."""
    kept = [parameter.grad for parameter in parameters]
    try:
        with _reducing(model):
            for parameter in parameters:
                parameter.grad = None
            loss.backward()  # autograd.grad would find the shards in no graph
        gradients = [parameter.grad for parameter in parameters]
        return [one.to_local() if hasattr(one, "to_local") else one for one in gradients]
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def _reducing(model: Module) -> Iterator[None]:
    """Have gradients reduced, in a step too that only accumulates them."""
    names = ("reduce_grads", "all_reduce_grads")
    kept = [(group, name, getattr(group, name)) for group in _groups_of(model) for name in names]
    try:
        for group, name, _ in kept:
            setattr(group, name, True)
        yield
    finally:
        for group, name, value in kept:
            setattr(group, name, value)


def _groups_of(model: Module) -> list[Any]:
    """Return the groups of parameters that are gathered together; what is set for them can be read nowhere else."""
    shards: list[Any] = [module for module in model.modules() if is_sharded(module)]
    return [group for module in shards for group in module._get_fsdp_state()._fsdp_param_groups]
