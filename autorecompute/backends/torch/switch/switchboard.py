"""Switches recompute on and off in the modules of a model."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import weakref
from typing import TYPE_CHECKING, NamedTuple

from torch._ops import OpOverload

from autorecompute.backends.torch.check.recompute_check import RecomputeCheck
from autorecompute.backends.torch.find.structure import is_within
from autorecompute.backends.torch.forecast.records import CHUNK, DROP, EVERY_2ND, KEEP_MATMUL
from autorecompute.backends.torch.switch.checkpoints import MATMULS, Checkpoint, attention_checkpoint
from autorecompute.backends.torch.switch.heads import Head
from autorecompute.backends.torch.switch.intercepting import intercept_attention, plainly, put_around, release
from autorecompute.plans import Choice

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from torch.nn import Module

    from autorecompute.backends.torch.switch.intercepting import Around
    from autorecompute.backends.torch.switch.rewriting import Program


@dataclasses.dataclass(frozen=True)
class Site:
    """A place in a model whose activations can be made again, with all its occurrences.

    Attributes:
        occurrences: Paths of the modules that are switched, in the order of the model. For ``drop`` these are the units
            whose graph is rewritten.
        kept: Operators whose results ``keep_matmul`` keeps.
        attention: True if ``checkpoint`` means the attention that the modules call, not their whole calls.
    """

    name: str
    options: tuple[str, ...]
    occurrences: tuple[str, ...]
    kept: tuple[OpOverload, ...] = MATMULS
    attention: bool = False


class Effect(NamedTuple):
    """An option that is on at the module with this path, an occurrence of a site."""

    site: str
    option: str
    path: str


class Switchboard:
    """All that can be switched in one model. Nothing is written on the model or on its modules.

    Where choices meet, the outermost checkpoint wins: with 3 of 12 blocks checkpointed and all their MLPs too, the MLPs
    of the other 9 are. What an operator's site would drop inside a checkpointed module is kept as it is, and so is what
    it would drop beside a head whose logits are made in chunks: there the graph is another one.

    ``programs`` are those of the units that have operators to drop.

    Attributes:
        heads: Those whose logits can be made in chunks, by their paths.
        by_length: Runs around the model's own calls, outside of all that is switched; ``None`` for nothing.
    """

    is_exact = True  # gradients on a CPU are those without recompute bit for bit

    def __init__(self, model: Module, sites: Iterable[Site], programs: Mapping[str, Program] | None = None) -> None:
        self.sites: Mapping[str, Site] = {site.name: site for site in sites}
        self._programs = programs or {}
        paths = {"", *(path for site in self.sites.values() for path in site.occurrences)}
        # Whoever keeps the switches must not keep the model with them.
        self._modules = {path: weakref.ref(model.get_submodule(path)) for path in sorted(paths)}
        self._checkpoints: dict[tuple[str, str], Checkpoint] = {}
        self.by_length: Around | None = None
        self._is_trying = False
        self._kept: dict[frozenset[Choice], tuple[frozenset[Effect], dict[str, list[Around]]]] = {}
        # Heads register hooks of optimizers. A switch cannot: it may be in such a hook.
        headed = [site for site in self.sites.values() if CHUNK in site.options]
        self.heads = {path: Head(path) for site in headed for path in site.occurrences}
        self.check = RecomputeCheck(model)
        self._chains: dict[str, list[Around]] = {}  # what is around each module
        self.choices: frozenset[Choice] = frozenset()
        self.effects: frozenset[Effect] = frozenset()

    def follow(self, by_length: Around | None) -> None:
        """Have this run around the model's own calls from the next switch on, or nothing."""
        self.by_length = by_length
        self._kept.clear()

    def resolve(self, choices: Iterable[Choice]) -> frozenset[Effect]:
        """Return the effects of the choices, one for each site; equal for choices that do the same.

        Raises:
            ValueError: A choice names an unknown site or option.
        """
        chosen = sorted(choices, key=str)
        for choice in chosen:
            site = self.sites.get(choice.site)
            if site is None:
                raise ValueError(f"the model has no site {choice.site}")
            if choice.option not in site.options:
                raise ValueError(f"{site.name} has no option {choice.option}; it has {', '.join(site.options)}")
        effects = [Effect(choice.site, choice.option, path) for choice in chosen for path in self.paths(choice)]
        return frozenset(effect for effect in effects if not any(self._hides(other, effect) for other in effects))

    def paths(self, choice: Choice) -> list[str]:
        """Paths of the modules at which a choice is on, whatever covers them."""
        paths = self.sites[choice.site].occurrences[: choice.count]
        return list(paths[::2] if choice.option == EVERY_2ND else paths)

    def _hides(self, winner: Effect, effect: Effect) -> bool:
        """Tell whether one effect leaves nothing to do for the other."""
        if winner is effect or winner.option == DROP or effect.option == CHUNK:
            return False
        if winner.option == CHUNK:
            return is_within(winner.path, effect.path) if effect.option == DROP else winner.path == effect.path
        if effect.option == DROP:
            inside = winner.site.replace(winner.site.partition("/")[0], winner.path, 1)
            return any(is_within(path, inside) for path in self._programs[effect.path].touched(effect.site))
        is_deeper = effect.path != winner.path or self.sites[effect.site].attention
        return is_deeper and not self.sites[winner.site].attention and is_within(effect.path, winner.path)

    def overlaps(self) -> frozenset[tuple[tuple[str, str], tuple[str, str]]]:
        """Pairs of a site with its option, of which the first leaves nothing of the second where both are."""
        wholes = [Choice(name, option) for name, site in self.sites.items() for option in site.options]
        pairs = ((one, other) for one in wholes for other in wholes if one.site != other.site)
        return frozenset(
            ((one.site, one.option), (other.site, other.option))
            for one, other in pairs
            if not any(effect.site == other.site for effect in self.resolve((one, other)))
        )

    def set(self, choices: Iterable[Choice]) -> None:
        """Have the next forward pass do what these choices say and nothing else.

        Call it between two steps: a graph that exists already is gone through as it was made. Where :meth:`resolve`
        raises an error, what was on stays on.
        """
        chosen = frozenset(choices)
        effects, arounds = self._made(chosen)
        if self.by_length is None:
            self._release()
        # Another model may have its attention on while this one is switched by the length of a batch.
        wanted = self.sites.values() if self.by_length is not None else [self.sites[one.site] for one in effects]
        intercept_attention(on=any(site.attention for site in wanted))
        if self.by_length is not None:  # from one batch to the next no module is released
            for path in self._chains.keys() - arounds.keys():
                self._chains[path][:] = [plainly]
        for path, chain in arounds.items():
            if path in self._chains:
                self._chains[path][:] = chain
            elif (module := self._modules[path]()) is not None:
                self._chains[path] = put_around(module, chain)
        self.choices, self.effects = chosen, effects
        self.check.switch(chosen)

    def _release(self) -> None:
        for path in self._chains:
            if (module := self._modules[path]()) is not None:
                release(module)
        self._chains.clear()

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """Have inside what is set on, for runs that are no steps of the training, and behind it what was on before."""
        before, was_trying = self.choices, self._is_trying
        self._try(is_on=True)
        with self.check.paused():
            try:
                yield
            finally:
                self._try(is_on=was_trying)
                self.set(before)

    def _try(self, *, is_on: bool) -> None:
        self._is_trying = is_on
        for head in self.heads.values():
            head.is_tried = is_on

    def _made(self, chosen: frozenset[Choice]) -> tuple[frozenset[Effect], dict[str, list[Around]]]:
        """Return the effects of choices, and the wrappers of each module.

        Where batches are switched by their lengths the wrappers come again: they know what was verified.
        """
        if self.by_length is None or self._is_trying:
            effects = self.resolve(chosen)
            return effects, self._arounds(effects)
        if chosen not in self._kept:
            effects = self.resolve(chosen)
            arounds = self._arounds(effects)
            self._kept[chosen] = effects, {**arounds, "": [self.by_length, *arounds.get("", ())]}
        return self._kept[chosen]

    def _arounds(self, effects: Iterable[Effect]) -> dict[str, list[Around]]:
        """Return the wrappers of each module, the outermost first."""
        dropped: dict[str, set[str]] = collections.defaultdict(set)
        inner: dict[str, list[Around]] = collections.defaultdict(list)
        for effect in effects:
            if effect.option == DROP:
                dropped[effect.path].add(effect.site)
            elif effect.option == CHUNK:
                inner[effect.path].append(self.heads[effect.path])
            elif self.sites[effect.site].attention:
                inner[effect.path].append(attention_checkpoint(self.check.watch(effect.site, effect.path)))
            else:
                inner[effect.path].insert(0, self._checkpoint(effect))
        outer = {
            path: self._programs[path].around({site: self.check.watch(site, path) for site in sorted(sites)})
            for path, sites in dropped.items()
        }
        return {path: [*([outer[path]] if path in outer else []), *inner[path]] for path in {*outer, *inner}}

    def _checkpoint(self, effect: Effect) -> Checkpoint:
        key = (effect.path, effect.option)
        if key not in self._checkpoints:
            operators = self.sites[effect.site].kept if effect.option == KEEP_MATMUL else ()
            module = self._modules[effect.path]()
            assert module is not None, "a model that is gone has nothing to switch"
            self._checkpoints[key] = Checkpoint(module, self.check.watch(effect.site, effect.path), operators)
        return self._checkpoints[key]
