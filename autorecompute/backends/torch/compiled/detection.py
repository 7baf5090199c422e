"""Detects what a compiled model offers, and switches it."""

from __future__ import annotations

import collections
import functools
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.checkpoint
from torch._functorch import config as functorch
from torch._inductor import config as inductor
from torch.nn.modules.batchnorm import _NormBase
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from autorecompute.backends.torch.compiled.forms import INNER, follow_compiler, original_of, refusals_of_compiled
from autorecompute.backends.torch.compiled.joint import Marks, groups_of
from autorecompute.backends.torch.compiled.partitions import VALUES, Partitions, option_of, trace_step, value_of
from autorecompute.backends.torch.find.detection import Detected, Saving, saving_of_modules
from autorecompute.backends.torch.find.own_checkpoints import places_of
from autorecompute.backends.torch.find.probe import Probe
from autorecompute.backends.torch.find.refusals import Reason, RefusalError, refusals_of_model
from autorecompute.backends.torch.find.structure import Structure, is_within, structure_of
from autorecompute.backends.torch.forecast.records import (
    BUDGET,
    CHECKPOINT,
    GRAPH,
    KEEP_MATMUL,
    RECOMPUTE,
    kept_cluster,
)
from autorecompute.backends.torch.switch.checkpoints import MATMULS
from autorecompute.backends.torch.switch.switchboard import Effect, Site, Switchboard
from autorecompute.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from torch.nn import Module

    from autorecompute.backends.torch.forecast.records import CompiledPeak
    from autorecompute.plans import Choice


CHOICE = "_autorecompute_choice"  # under this name a module has its option

_KEEPING_MATMULS = functools.partial(create_selective_checkpoint_contexts, list(MATMULS))
_MODULES: collections.Counter[type] = collections.Counter()
_REPLACED: dict[type, Any] = {}  # the forward that each class had in its own dict; None where it had none


def choose(module: Module, option: str | None) -> None:
    """Checkpoint the module's calls from the next compilation on; ``None`` to call it plainly again."""
    before = vars(module).pop(CHOICE, None)
    if option is not None:
        vars(module)[CHOICE] = option
    if (before is None) != (option is None):
        _count(type(module), -1 if option is None else 1)


def _count(kind: type, change: int) -> None:
    _MODULES[kind] += change
    if _MODULES[kind] > 0 and kind not in _REPLACED:
        _REPLACED[kind] = vars(kind).get("forward")
        kind.forward = _forward_of(kind, kind.forward)  # type: ignore[attr-defined]
    elif _MODULES[kind] == 0 and kind in _REPLACED:
        original = _REPLACED.pop(kind)
        if original is None:
            del kind.forward  # type: ignore[attr-defined]
        else:
            kind.forward = original  # type: ignore[attr-defined]


def _forward_of(kind: type, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def forward(self: Module, *args: Any, **kwargs: Any) -> Any:
        # A subclass that calls super().forward() comes here a second time: it is checkpointed as a whole.
        option = self.__dict__.get("_autorecompute_choice") if type(self) is kind else None
        if option is None:
            return original(self, *args, **kwargs)
        call = functools.partial(original, self)
        # The compiler knows what stands under this name now, which ONNX Runtime's import changes.
        checkpoint = torch.utils.checkpoint.checkpoint
        if option == KEEP_MATMUL:
            return checkpoint(call, *args, use_reentrant=False, context_fn=_KEEPING_MATMULS, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, **kwargs)

    return forward


class CompiledBoard(Switchboard):
    """All that can be switched in one compiled model."""

    is_exact = False

    def __init__(self, model: Module, sites: Iterable[Site]) -> None:
        super().__init__(model, sites)
        follow_compiler()
        self._groups = groups_of(structure_of(model))
        self._before: tuple[float, Any] | None = None

    def set(self, choices: Iterable[Choice]) -> None:
        """Do what :meth:`Switchboard.set` does, and forget what was compiled before: it is read from the caches."""
        chosen = frozenset(choices)
        effects = self.resolve(chosen)
        if effects != self.effects:
            self._turn(effects)
        self.choices, self.effects = chosen, effects

    def resolve(self, choices: Iterable[Choice]) -> frozenset[Effect]:
        """Do what :meth:`Switchboard.resolve` does.

        A budget decides about the whole graph, and a checkpoint about all that is in its modules.
        """
        chosen = tuple(choices)
        clusters = {choice for choice in chosen if choice.option == RECOMPUTE}
        others = super().resolve(choice for choice in chosen if choice not in clusters)
        found = super().resolve(clusters)
        is_decided = any(effect.site == GRAPH for effect in others)
        whole = [
            on.site
            for on in chosen
            if on not in clusters and len(self.paths(on)) == len(self.sites[on.site].occurrences)
        ]
        return others | {
            effect for effect in found if not is_decided and not any(is_within(effect.site, group) for group in whole)
        }

    def _turn(self, effects: frozenset[Effect]) -> None:
        budgets = [value_of(effect.option) for effect in effects if effect.option.startswith(BUDGET)]
        options = {effect.path: effect.option for effect in effects if effect.path}
        for path, reference in self._modules.items():
            module = reference()
            if path and module is not None:
                choose(module, options.get(path))
        kept = {effect: kept_cluster(effect.site, effect.option) for effect in effects}
        self._ask(
            budgets[0] if budgets else None,
            recomputed=frozenset(effect.site for effect in effects if effect.option == RECOMPUTE),
            kept=frozenset(cluster for effect, cluster in kept.items() if cluster and not effect.path),
            spared=frozenset(cluster for effect, cluster in kept.items() if cluster and effect.path),
        )
        torch._dynamo.reset()
        follow_compiler()  # the reset forgets who listens

    def _ask(self, budget: float | None, **clusters: frozenset[str]) -> None:
        """Set the compiler of this process; where nothing is asked for, put back the settings of the script."""
        is_none = budget is None and not any(clusters.values())
        if self._before is None:
            if is_none:
                return
            self._before = functorch.activation_memory_budget, inductor.joint_custom_post_pass
        own, found = self._before
        functorch.activation_memory_budget = own if budget is None else budget
        inductor.joint_custom_post_pass = found if is_none else Marks(found, self._groups, **clusters)
        if is_none:
            self._before = None


def detect_compiled(model: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Detected, CompiledBoard]:
    """Return the sites of a compiled model that is to be called with these arguments, and its switches.

    It is run forward once without the compiler, which keeps no more than one block's activations, and traced once. The
    graph of that is cut as the compiler would cut it under each plan.

    Raises:
        RefusalError: Nothing of it can be recomputed.
    """
    original = original_of(model)
    for refusal in (*refusals_of_compiled(model), *refusals_of_model(original)):
        raise refusal
    structure = structure_of(original)
    # Under a dispatch mode the compiler would leave what it meets without code, to the end of the process.
    with torch.compiler.set_stance("force_eager"):
        # The compiler cannot make a cache inside of a checkpoint without breaking its graph.
        seen = Probe(original, structure.units, refuses_caches=True).run(args, kwargs)
    blocks, refusals = _blocks(original, structure, seen)
    step, why_none = trace_step(model, args, kwargs)
    options: dict[tuple[str, str], int] = {}
    peaks: tuple[CompiledPeak, ...] = ()
    if step is not None:
        eager_bytes = None if step.is_whole else _eager_bytes(seen, structure)
        try:
            options, peaks = Partitions(step, structure, eager_bytes).offer(blocks)
        except Exception as error:  # noqa: BLE001  (the compiler's own code, on a graph that it may not be able to cut)
            why_none = first_line(error)
    of_site = collections.defaultdict[str, list[str]](list)
    for name, option in options:
        of_site[name].append(option)
    blocks = [Site(site.name, (*site.options, *of_site.pop(site.name, ())), site.occurrences) for site in blocks]
    sites = (*blocks, *(Site(name, tuple(own), ("",)) for name, own in of_site.items()))
    savings = {site.name: saving_of_modules(seen, site.occurrences) for site in blocks}
    if why_none:
        refusals.insert(0, RefusalError(Reason.COMPILED_BUDGETS, why_none))
    if not any(RECOMPUTE in site.options for site in sites):
        refusals.insert(0, RefusalError(Reason.COMPILED_OPERATORS))
    found = Detected(
        structure=structure,
        sites=sites,
        savings={**dict.fromkeys(of_site, Saving(0, 0)), **savings},
        option_savings={key: Saving(0, saved / seen.batch) for key, saved in options.items()},
        refusals=tuple(refusals),
        blocks=tuple(site.name for site in blocks),
        batch=seen.batch,
        saved=sum(saved.bytes for saved in seen.saved.values()),
        values=seen.values,
        compiled_peaks=peaks,
        checkpointed=places_of(seen.checkpointed, structure),
    )
    return found, CompiledBoard(original, sites)


def _eager_bytes(seen: Probe, structure: Structure) -> int:
    """Return the bytes that lie outside of blocks between forward and backward pass, where only blocks are compiled.

    These are the tensors saved there, and a gradient of the largest.
    """
    outside = [
        saved.bytes
        for saved in seen.saved.values()
        if not any(is_within(saver, unit) for saver in saved.savers for unit in structure.units)
    ]
    return sum(outside) + max(outside, default=0)


def board_of(model: Module, choices: Iterable[Choice] = ()) -> CompiledBoard:
    """Return the switches of a compiled model by its modules alone, for the choices of a config measured on it.

    Clusters of operators are taken from the choices: only the compiler knows what there is.
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


def _blocks(model: Module, structure: Structure, seen: Probe) -> tuple[list[Site], list[RefusalError]]:
    """Return the blocks that can be checkpointed, and why others cannot."""
    sites, refusals = [], []
    for group, paths in _groups(model, structure):
        reason = next((seen.refused[path] for path in paths if path in seen.refused), None)
        parts = [part for path in paths for part in model.get_submodule(path).modules()]
        if reason is None and any(isinstance(part, _NormBase) and part.track_running_stats for part in parts):
            reason = Reason.COMPILED_STATISTICS
        if reason is not None:
            refusals.append(RefusalError(reason, group))
        elif set(paths).issubset(seen.called):
            keeps = seen.changed_in(paths).isdisjoint(MATMULS)
            sites.append(Site(group, (CHECKPOINT, KEEP_MATMUL) if keeps else (CHECKPOINT,), paths))
    return sites, refusals


def _groups(model: Module, structure: Structure) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the groups that are blocks, each with the paths of the modules that the script wrote."""
    for group, units in structure.groups.items():
        if set(units) <= set(structure.units):
            inner = {unit: INNER in model.get_submodule(unit)._modules for unit in units}
            yield group, tuple(f"{unit}.{INNER}" if inner[unit] else unit for unit in units)
