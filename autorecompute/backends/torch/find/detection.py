"""Detects what a model can recompute, and the configs that this makes."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from autorecompute.backends.common import TOLERANCES
from autorecompute.backends.torch.compiled.forms import compiled_paths, compiles_under_modes
from autorecompute.backends.torch.fake.repeats import repeated
from autorecompute.backends.torch.find.operators import Finder
from autorecompute.backends.torch.find.own_checkpoints import places_of
from autorecompute.backends.torch.find.probe import Probe
from autorecompute.backends.torch.find.refusals import Reason, RefusalError, refusals_of_model
from autorecompute.backends.torch.find.storages import Values
from autorecompute.backends.torch.find.structure import Structure, forgotten, is_sharded, is_within, structure_of
from autorecompute.backends.torch.forecast.records import (
    CHECKPOINT,
    CHUNK,
    DROP,
    EVERY_2ND,
    KEEP_MATMUL,
    CompiledPeak,
    label_of,
)
from autorecompute.backends.torch.switch.checkpoints import MATMULS
from autorecompute.backends.torch.switch.heads import Head
from autorecompute.backends.torch.switch.intercepting import ATTENTION
from autorecompute.backends.torch.switch.module_state import autocast_dtypes
from autorecompute.backends.torch.switch.rewriting import Program
from autorecompute.backends.torch.switch.switchboard import Site, Switchboard
from autorecompute.plans import Choice, Config, Plan, Space

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.find.probe import Saved
    from autorecompute.backends.torch.forecast.records import Steps


@dataclasses.dataclass(frozen=True)
class Saving:
    """Bytes as ``fixed + per_sample * batch``."""

    fixed: float
    per_sample: float

    def at(self, batch: int) -> float:
        """Return the bytes at a batch."""
        return self.fixed + self.per_sample * batch

    def __sub__(self, other: Saving) -> Saving:
        return Saving(self.fixed - other.fixed, self.per_sample - other.per_sample)


def _saving_of(storages: Collection[Saved], batch: int) -> Saving:
    scaling = sum(saved.bytes for saved in storages if saved.scales)
    return Saving(sum(saved.bytes for saved in storages) - scaling, scaling / batch)


def saving_of_modules(seen: Probe, paths: Collection[str]) -> Saving:
    """Return the bytes that checkpointing these modules saves: those only they saved, less the inputs held then."""
    held = [seen.given[number] for number in _given(seen, paths) if number not in seen.saved]
    dropped = [seen.saved[number] for number in _kept_alone(seen, paths)]
    return _saving_of(dropped, seen.batch) - _saving_of(held, seen.batch)


def _given(seen: Probe, paths: Collection[str]) -> set[int]:
    """Return the tensors that the calls of these paths are given."""
    return {number for call in seen.calls if call.path in paths for number in call.inputs}


def _kept_alone(seen: Probe, paths: Collection[str]) -> set[int]:
    """Return the tensors that nothing but these modules keeps, and that they are not given."""
    return {
        number
        for number, saved in seen.saved.items()
        if all(any(is_within(saver, path) for path in paths) for saver in saved.savers)
    } - _given(seen, paths)


FEW_BLOCKS = 2  # of so many blocks the first is also every second one
LEAST_SHARE = 0.002  # a site that saves less of all that is saved is not offered


MOST_GIVEN = 3  # with so many of those that are given the result of a module, a step is run with both


_LEFT_ALONE = {Reason.OUTPUT, Reason.OWN_CHECKPOINT}
"""Why single modules of a group are left as they are, and the others are not."""


@dataclasses.dataclass(frozen=True)
class Detected:
    """Sites and plans that a model offers.

    Attributes:
        sites: Where it can be recomputed, the largest saving first.
        savings: Net savings of each site, if nothing else is recomputed.
        programs: For each unit how its operators are dropped.
        blocks: Names of the sites that are whole units.
        batch: Samples in the batch that was looked at.
        saved: Bytes that a forward pass of that batch saves.
        values: The values that modules looked at in it.
        calls: The units in the order of those of their calls that keep anything.
        operators: Names of the nodes that each unit's graph has, and the model's own, each graph once.
        repeated: Units that do what the one before them does.
        interactions: Pairs of sites that share a tensor: the modules of the second are given it, and keep it
            when they are checkpointed. Those of the first drop it, are given it too, or have it as their result.
        compiled_peaks: Peaks to expect of compiled code with each plan.
        option_savings: Savings of a site with an option, where its options differ in that.
        checkpointed: Where the script checkpoints itself, or would if that were not replaced.
        unit_bytes: Bytes that each unit saves for the backward pass, by its path; those in none under an empty one.
        tolerance: Most by which gradients may differ where sums come in another order, relative to their largest.
    """

    structure: Structure
    sites: tuple[Site, ...]
    savings: Mapping[str, Saving]
    refusals: tuple[RefusalError, ...]
    blocks: tuple[str, ...]
    batch: int
    saved: int
    values: Values
    programs: Mapping[str, Program] = dataclasses.field(default_factory=dict)
    calls: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    repeated: frozenset[str] = frozenset()
    interactions: tuple[tuple[str, str], ...] = ()
    compiled_peaks: tuple[CompiledPeak, ...] = ()
    option_savings: Mapping[tuple[str, str], Saving] = dataclasses.field(default_factory=dict)
    checkpointed: tuple[str, ...] = ()
    unit_bytes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    tolerance: float = 0.0

    def exact(self) -> Detected:
        """Return the same without the sites that change the order of a sum."""
        return dataclasses.replace(self, sites=tuple(site for site in self.sites if CHUNK not in site.options))

    def switchboard(self, model: Module) -> Switchboard:
        """Return the switches of the model that was looked at."""
        return Switchboard(model, self.sites, self.programs)


def detect(
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    calls: int = 1,
    heads: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> Detected:
    """Return the sites of a model that is to be called with these arguments in training, so often in a step.

    Nothing may be switched on in it. It is run forward, which keeps no more than one unit's activations and leaves no
    trace. The logits of ``heads``, layers by the names of sites that are known already, are made in chunks there.

    Raises:
        RefusalError: Nothing can.
    """
    for refusal in refusals_of_model(model):
        raise refusal
    structure, drops = structure_of(model), not is_sharded(model)
    finder = Finder(model, structure, drops=drops)
    with forgotten(model), torch.compiler.set_stance("force_eager"):
        chunked = {path: Head(path, is_tried=True) for paths in heads.values() for path in paths}
        probe = Probe(model, structure.units, finder.visit, compiled_paths(model), calls, chunked=chunked)
        seen = probe.run(args, kwargs)
    programs, storages = finder.finish(seen)
    blocks = {structure.group_of(unit) for unit in structure.units}
    saved = sum(one.bytes for one in seen.saved.values())
    found = {
        **_modules(seen, structure, blocks),
        **_attention(seen, structure),
        **_operators(seen, programs, storages),
        **(_heads(seen) if drops else {}),
        **{
            Site(name, (CHUNK,), tuple(paths)): Saving(saved, 0.0)
            for name, paths in heads.items()
            if drops and not _reason(seen, paths)
        },
    }
    large = [site for site, saving in found.items() if saving.at(seen.batch) > LEAST_SHARE * saved]
    sites = sorted(large, key=lambda site: -found[site].at(seen.batch))
    savings = {site.name: found[site] for site in sites}
    unverified = sorted(finder.unverified - savings.keys())
    return Detected(
        structure=structure,
        sites=tuple(sites),
        savings=savings,
        programs=programs,
        refusals=(
            *_refusals(seen, structure),
            *_refusals_of_heads(seen, is_sharded=not drops),
            *(RefusalError(Reason.UNVERIFIED, name) for name in unverified),
            *(() if drops else (RefusalError(Reason.SHARDED_OPERATORS),)),
        ),
        blocks=tuple(site.name for site in sites if site.name in blocks),
        batch=seen.batch,
        saved=saved,
        values=seen.values,
        calls=tuple(call.path for call in seen.calls if call.keeps and call.path in structure.units),
        operators=finder.operators,
        repeated=repeated(finder.links, programs, kept=1 if drops else 2),
        interactions=tuple(_interactions(seen, sites, storages)),
        checkpointed=places_of(seen.checkpointed, structure),
        unit_bytes=_unit_bytes(seen, structure),
        tolerance=_tolerance_of(model),
    )


def _interactions(seen: Probe, sites: Sequence[Site], storages: Mapping[str, set[int]]) -> Iterator[tuple[str, str]]:
    modules = [site for site in sites if CHECKPOINT in site.options]
    inputs = {module.name: _given(seen, _calls_of(module)) for module in modules}
    for module in modules:
        for site in sites:
            if DROP in site.options and inputs[module.name] & storages[site.name]:
                yield site.name, module.name
    found = [*_sharing(seen, modules, inputs), *_handing_on(seen, modules, inputs)]
    yield from {frozenset(pair): pair for pair in found}.values()  # a step with both tells all that they share


def _sharing(seen: Probe, modules: Sequence[Site], inputs: Mapping[str, set[int]]) -> Iterator[tuple[str, str]]:
    """Pairs that are given one tensor, which one of them keeps for all.

    Of three, the first makes a pair with each other: the sum is then right with the first, and without it too high,
    never too low.
    """
    for place, module in enumerate(modules):
        for other in modules[:place]:
            if inputs[module.name] & inputs[other.name] - seen.saved.keys() and not _is_nested(module, other):
                yield other.name, module.name
                break


def _handing_on(seen: Probe, modules: Sequence[Site], inputs: Mapping[str, set[int]]) -> Iterator[tuple[str, str]]:
    """Pairs of which the first keeps its result, as a ReLU does, and checkpointed does not, unless the second does.

    Of many that are given it, those that save most: a step for each would take too long.
    """
    for module in modules:
        results = _kept_alone(seen, _calls_of(module))
        given_it = (other for other in modules if results & inputs[other.name] and not _is_nested(module, other))
        for other in itertools.islice(given_it, MOST_GIVEN):
            yield module.name, other.name


def _unit_bytes(seen: Probe, structure: Structure) -> dict[str, int]:
    sizes: dict[str, int] = collections.defaultdict(int)
    for saved in seen.saved.values():
        units = {structure.unit_of(saver) for saver in saved.savers} - {""}
        sizes[min(units, key=structure.units.index, default="")] += saved.bytes
    return dict(sizes)


def _modules(seen: Probe, structure: Structure, blocks: Collection[str]) -> dict[Site, Saving]:
    compiled = [path for path, reason in seen.refused.items() if reason is Reason.COMPILED]
    called, found = set(seen.called), dict[Site, Saving]()
    for group, members in structure.groups.items():
        paths = _trained(seen, members)
        if not paths or not called.issuperset(members) or _reason(seen, paths):
            continue
        changed = seen.changed_in(paths)
        kept = tuple(operator for operator in MATMULS if operator not in changed)
        # Where results are kept, a dispatch mode is around the modules.
        can_keep = compiles_under_modes() or not any(is_within(part, path) for part in compiled for path in paths)
        has = {CHECKPOINT: True, KEEP_MATMUL: kept and can_keep, EVERY_2ND: len(paths) > FEW_BLOCKS}
        options = tuple(option for option, offered in has.items() if offered)
        site = Site(group, options if group in blocks else (CHECKPOINT,), paths, kept)
        found[site] = saving_of_modules(seen, paths)
    return found


def _attention(seen: Probe, structure: Structure) -> dict[Site, Saving]:
    groups: dict[str, list[str]] = collections.defaultdict(list)
    for path in seen.called:
        module, _, function = path.partition("/")
        if function:
            groups[structure.group_of(module)].append(module)
    found: dict[Site, Saving] = {}
    for group, members in groups.items():
        paths = _trained(seen, members)
        if paths and not _reason(seen, paths):
            site = Site(f"{group}/{ATTENTION}" if group else ATTENTION, (CHECKPOINT,), paths, attention=True)
            found[site] = saving_of_modules(seen, _calls_of(site))
    return found


def _operators(seen: Probe, programs: Mapping[str, Program], storages: Mapping[str, set[int]]) -> dict[Site, Saving]:
    units: dict[str, dict[str, None]] = collections.defaultdict(dict)
    for path in sorted(programs, key=seen.called.index):
        for drop in programs[path].drops:
            units[drop.site][path] = None
    return {
        Site(name, (DROP,), tuple(paths)): _saving_of([seen.saved[number] for number in storages[name]], seen.batch)
        for name, paths in units.items()
    }


def _heads(seen: Probe) -> dict[Site, Saving]:
    return {
        Site(name, (CHUNK,), paths): Saving(0, size / seen.batch)
        for name, paths, size in seen.heads.sites()
        if not _reason(seen, paths)
    }


def _tolerance_of(model: Module) -> float:
    """Return the tolerance of the type with the fewest bits that the model computes in."""
    kinds = {parameter.dtype for parameter in model.parameters()} | {*autocast_dtypes().values()}
    return max(TOLERANCES.get(str(kind).removeprefix("torch."), 0.0) for kind in kinds)


def _refusals_of_heads(seen: Probe, *, is_sharded: bool) -> Iterator[RefusalError]:
    for name, paths, _ in seen.heads.sites():
        if is_sharded or _reason(seen, paths) is not None:
            yield RefusalError(Reason.SHARDED_HEAD if is_sharded else Reason.HEAD, name)


def _trained(seen: Probe, paths: Sequence[str]) -> tuple[str, ...]:
    """Return the blocks that gradients go back through and that the script does not checkpoint itself.

    Others may be frozen, and everything in front of them.
    """
    return tuple(path for path in paths if seen.refused.get(path) not in _LEFT_ALONE)


def _reason(seen: Probe, paths: Sequence[str]) -> Reason | None:
    return next((seen.refused[path] for path in paths if path in seen.refused), None)


def _refusals(seen: Probe, structure: Structure) -> Iterator[RefusalError]:
    for group, paths in structure.groups.items():
        if reason := _reason(seen, _trained(seen, paths) or paths):
            yield RefusalError(reason, group)


def _calls_of(module: Site) -> set[str]:
    return {f"{path}/{ATTENTION}" if module.attention else path for path in module.occurrences}


def _is_nested(one: Site, other: Site) -> bool:
    return any(is_within(a, b) or is_within(b, a) for a in one.occurrences for b in other.occurrences)


NOT_IN_A_NAME = frozenset(":,")
"""These stand between the parts of a choice, and between choices, wherever one is written."""

FEWEST_UNITS = 2  # a single block may be all that a model has


def _presets_of(space: Space, found: Detected, sites: Collection[Site]) -> dict[str, Config]:
    """Return the configs that people know by name; each is left out where the model has nothing it is about.

    ``blocks`` is what ``gradient_checkpointing_enable()`` does, ``half_of_blocks`` does it to the first half only
    and ``every_2nd_block`` to every second one, ``keep_matmul`` keeps the results of their matrix products,
    ``operators`` makes single operators again and no module, and ``attention`` the inside of attention alone.
    """
    names = {site.name for site in sites if site.attention}
    attention = [plan for plan in space.plans if plan.sites <= names]
    operators = [plan for plan in space.plans if plan.option == DROP]

    def blocks(option: str) -> list[Plan]:
        return [plan for plan in space.plans if plan.option == option and plan.sites <= set(found.blocks)]

    def config_of(plans: Iterable[Plan], share: int = 1) -> Config:
        config = Config()
        for plan in plans:
            if plan.occurrences >= share:
                config = space.with_plan(config, plan, -(-plan.occurrences // share))
        return config

    presets = {
        "blocks": config_of(blocks(CHECKPOINT)),
        "half_of_blocks": config_of(blocks(CHECKPOINT), 2),
        "every_2nd_block": Config(
            frozenset(Choice(site.name, EVERY_2ND) for site in sites if EVERY_2ND in site.options)
        ),
        "keep_matmul": config_of(blocks(KEEP_MATMUL)),
        "operators": config_of((*operators, *attention)),
        "attention": config_of(attention),
    }
    return {name: config for name, config in presets.items() if not config.is_none}


def offered(found: Detected) -> list[Site]:
    """Return the sites that are plans.

    A checkpoint around all blocks of a model is none: it makes them all again at once, and the peak stays. Neither is a
    site whose name cannot be written in a choice.
    """
    return [
        site
        for site in found.sites
        if not NOT_IN_A_NAME.intersection(site.name) and not _holds_all(site, found.structure.units)
    ]


def _holds_all(site: Site, units: Collection[str]) -> bool:
    if site.attention or CHECKPOINT not in site.options or len(units) < FEWEST_UNITS:
        return False
    return any(all(is_within(unit, path) for unit in units) for path in site.occurrences)


def space_of(found: Detected, board: Switchboard, steps: Steps | None) -> Space:
    """Return all that can be switched on in a model."""
    sites = offered(found)
    plans = tuple(_plan(site, option, found, steps) for site in sites for option in site.options if option != EVERY_2ND)
    space = Space(plans=plans, covers=_covers(board, {site.name for site in sites}))
    return dataclasses.replace(space, own_presets=_presets_of(space, found, sites))


def _plan(site: Site, option: str, found: Detected, steps: Steps | None) -> Plan:
    saving = found.option_savings.get((site.name, option), found.savings[site.name])
    if option == KEEP_MATMUL and steps is not None:
        saving = _seen_saving(site.name, option, steps)
    places = 1 if option == CHUNK else len(site.occurrences)  # the layers of a head are one
    return Plan(
        choices=(Choice(site.name, option),),
        label=label_of(site.name, option),
        occurrences=places,
        counts=places > 1,
        saving_bytes=round(saving.at(found.batch)),
        saving=_written(saving),
        equal_within=found.tolerance if option == CHUNK else 0.0,
    )


def _seen_saving(site: str, option: str, steps: Steps) -> Saving:
    """Return the bytes that a choice saves in the forward passes of a step."""
    seen = next((one for one in steps.options if (one.site, one.option) == (site, option)), None)
    if seen is None:
        return Saving(0, 0)
    forward = {place for place, part in enumerate(steps.parts) if part.phase == "forward"}
    saved = -sum(change for place, change in zip(seen.parts, seen.change, strict=True) if place in forward)
    return Saving(0, saved / steps.batch)


def _written(saving: Saving) -> str:
    parts = [str(round(saving.fixed))] if round(saving.fixed) or not round(saving.per_sample) else []
    parts += [f"{round(saving.per_sample)}*batch"] if round(saving.per_sample) else []
    return " + ".join(parts)


def _covers(board: Switchboard, offered_sites: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the sites of which each site leaves nothing to do, whatever their options."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for (one, _), (other, _) in sorted(board.overlaps()):
        if {one, other} <= set(offered_sites) and one not in found[other]:
            found[one].add(other)
    return {site: tuple(sorted(others)) for site, others in sorted(found.items()) if others}
