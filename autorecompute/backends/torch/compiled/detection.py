"""What a compiled model offers: checkpoints of its blocks, and budgets of the compiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn.modules.batchnorm import _NormBase

from autorecompute.backends.torch.checkpoints import MATMULS
from autorecompute.backends.torch.compiled.board import CompiledBoard
from autorecompute.backends.torch.compiled.budgets import VALUES, option_of
from autorecompute.backends.torch.compiled.forms import INNER, eagerly, original_of, refusals_of_compiled
from autorecompute.backends.torch.compiled.offered import Offered
from autorecompute.backends.torch.detection import Detected
from autorecompute.backends.torch.key_values import has_cache
from autorecompute.backends.torch.options import CHECKPOINT, GRAPH, KEEP_MATMUL, RECOMPUTE, kept_cluster
from autorecompute.backends.torch.own_checkpoints import places_of
from autorecompute.backends.torch.probe import Probe
from autorecompute.backends.torch.refusals import Reason, Refusal, RefusedModelError, refusals_of_model
from autorecompute.backends.torch.savings import Saving, saving_of_modules
from autorecompute.backends.torch.structure import Structure, is_within, structure_of
from autorecompute.backends.torch.switchboard import Site
from autorecompute.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.probe import Observation
    from autorecompute.plans import Choice


class _Probe(Probe):
    """Refuses all caches: the compiler cannot make one inside of a checkpoint without breaking its graph."""

    def _refuse_before(self, path: str, module: Module, values: Sequence[Any]) -> None:
        if has_cache(values):
            self._refuse(path, Reason.CACHE)
        super()._refuse_before(path, module, values)


def detect_compiled(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Detected, CompiledBoard]:
    """Return what can be recomputed in a compiled model that is to be called with these arguments, and its switches.

    It is run forward once without the compiler, which keeps no more than one block's activations, and traced once. The
    graph of that is cut as the compiler would cut it under each plan.

    Raises:
        RefusedModelError: Nothing can.
    """
    original = original_of(model)
    for refusal in (*refusals_of_compiled(model), *refusals_of_model(original)):
        raise RefusedModelError(refusal)
    from autorecompute.backends.torch.compiled.partitions import Partitions  # an older torch lacks what it needs
    from autorecompute.backends.torch.compiled.steps import trace_step

    structure = structure_of(original)
    with eagerly():
        seen = _Probe(original, structure.units).run(args, kwargs)
    if seen.is_hooked:
        raise RefusedModelError(Refusal(Reason.OWN_HOOKS))
    if "" in seen.refused:
        raise RefusedModelError(Refusal(seen.refused[""]))
    blocks, refusals = _blocks(original, structure, seen)
    step, why_none = trace_step(model, args, kwargs)
    offer = Offered()
    if step is not None:
        eager_bytes = None if step.is_whole else _eager_bytes(seen, structure)
        try:
            offer = Partitions(step, structure, eager_bytes).offer(blocks)
        except Exception as error:  # noqa: BLE001  (the compiler's own code, on a graph that it may not be able to cut)
            why_none = first_line(error)
    blocks = [Site(site.name, (*site.options, *offer.of(site.name)), site.occurrences) for site in blocks]
    others = dict.fromkeys(name for name, _ in offer.options if name not in {site.name for site in blocks})
    sites = (*blocks, *(Site(name, offer.of(name), ("",)) for name in others))
    savings = {site.name: saving_of_modules(seen, site.occurrences) for site in blocks}
    found = Detected(
        structure=structure,
        sites=sites,
        savings={**dict.fromkeys(others, Saving(0, 0)), **savings},
        option_savings={key: Saving(0, saved / seen.batch) for key, saved in offer.options.items()},
        programs={},
        refusals=(*_told(why_none, sites), *refusals),
        blocks=tuple(site.name for site in blocks),
        batch=seen.batch,
        saved=sum(saved.bytes for saved in seen.saved.values()),
        values=seen.values,
        calls=(),
        operators=(),
        repeated=frozenset(),
        compiled_peaks=offer.peaks,
        checkpointed=places_of(seen.checkpointed, structure),
    )
    return found, CompiledBoard(original, sites)


def _eager_bytes(seen: Observation, structure: Structure) -> int:
    """Return what lives outside of blocks between forward and backward pass, where only blocks are compiled.

    That is what is saved there, and a gradient of the largest of it.
    """
    outside = [
        saved.bytes
        for saved in seen.saved.values()
        if not any(is_within(saver, unit) for saver in saved.savers for unit in structure.units)
    ]
    return sum(outside) + max(outside, default=0)


def board_of(model: Module, choices: Iterable[Choice] = ()) -> CompiledBoard:
    """Return the switches of a compiled model by its modules alone, for a config that was measured on it.

    Args:
        model: The model.
        choices: Those of the config. Clusters of operators are taken from them: only the compiler knows what there is.
    """
    original = original_of(model)
    asked: dict[str, tuple[str, ...]] = {}
    for choice in choices:
        if kept_cluster(choice.site, choice.option) or choice.option == RECOMPUTE:
            asked[choice.site] = (*asked.get(choice.site, ()), choice.option)
    blocks = [
        Site(group, (CHECKPOINT, KEEP_MATMUL, *asked.pop(group, ())), paths)
        for group, paths in _groups(original, structure_of(original))
    ]
    graph = Site(GRAPH, (*map(option_of, VALUES), *asked.pop(GRAPH, ())), ("",))
    return CompiledBoard(original, [*blocks, graph, *(Site(name, options, ("",)) for name, options in asked.items())])


def _told(why_none: str, sites: Iterable[Site]) -> Iterator[Refusal]:
    if not any(RECOMPUTE in site.options for site in sites):
        yield Refusal(Reason.COMPILED_OPERATORS)
    if why_none:
        yield Refusal(Reason.COMPILED_BUDGETS, why_none)


def _blocks(model: Module, structure: Structure, seen: Observation) -> tuple[list[Site], list[Refusal]]:
    """Return the blocks that can be checkpointed, and why others cannot."""
    sites, refusals = [], []
    for group, paths in _groups(model, structure):
        reason = next((seen.refused[path] for path in paths if path in seen.refused), None)
        if reason is None and any(_writes_statistics(model.get_submodule(path)) for path in paths):
            reason = Reason.COMPILED_STATISTICS
        if reason is not None:
            refusals.append(Refusal(reason, group))
        elif {call.path for call in seen.calls}.issuperset(paths):
            sites.append(Site(group, (CHECKPOINT, KEEP_MATMUL) if _keeps(seen, paths) else (CHECKPOINT,), paths))
    return sites, refusals


def _groups(model: Module, structure: Structure) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the groups that are blocks, each with the paths of the modules that the script wrote."""
    for group, units in structure.groups.items():
        if set(units) <= set(structure.units):
            inner = {unit: INNER in model.get_submodule(unit)._modules for unit in units}
            yield group, tuple(f"{unit}.{INNER}" if inner[unit] else unit for unit in units)


def _keeps(seen: Observation, paths: Sequence[str]) -> bool:
    """Tell whether no result of a matrix product is changed in place in these modules."""
    changed = {operator for path, operator in seen.changed if any(is_within(path, one) for one in paths)}
    return changed.isdisjoint(MATMULS)


def _writes_statistics(module: Module) -> bool:
    return any(isinstance(part, _NormBase) and part.track_running_stats for part in module.modules())
