"""A model that trains, with what a probe found in it and its switches."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from torch.nn import Module

from autorecompute.backends.torch.compiled.forms import has_compiled, original_of
from autorecompute.backends.torch.detection import Detected, detect
from autorecompute.backends.torch.fakes import FakeSteps
from autorecompute.backends.torch.interception import around_of
from autorecompute.backends.torch.rewriting import Rewrite
from autorecompute.backends.torch.switchboard import Switchboard
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autorecompute.backends.torch.fakes import Script
    from autorecompute.plans import Config

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tuned:
    """A model with its switches.

    The model is not kept by it.

    Attributes:
        reference: A weak reference to the model.
        found: What a probe found in it.
        board: Its switches.
        is_compiled: Whether the compiler runs it.
    """

    reference: weakref.ref[Module]
    found: Detected
    board: Switchboard
    is_compiled: bool = False

    @classmethod
    def of(cls, model: Module, args: Sequence[Any], kwargs: Mapping[str, Any], calls: int = 1) -> Self:
        """Return the model that is about to be called with these arguments for training.

        Args:
            model: The model.
            args: The positional arguments of its call.
            kwargs: Its keyword arguments.
            calls: How often it is called in a step before the backward pass.

        Raises:
            RefusedModelError: nothing of it can be recomputed.
        """
        if has_compiled(model):
            from autorecompute.backends.torch.compiled.detection import detect_compiled

            found, board = detect_compiled(model, args, kwargs)
            return cls(weakref.ref(original_of(model)), found, board, is_compiled=True)
        found = detect(model, args, kwargs, calls)
        return cls(weakref.ref(model), found, found.switchboard(model))

    @property
    def blocks(self) -> dict[str, Module]:
        """Return the repeated modules by their paths; none of a compiled model, whose graph has them all."""
        model = self.reference()
        paths = () if model is None or self.is_compiled else self.found.structure.units
        return {path: model.get_submodule(path) for path in paths} if model is not None else {}

    def switch(self, config: Config) -> None:
        """Have the next forward pass recompute what the config says and nothing else.

        Raises:
            UsageError: the model does not offer that.
        """
        try:
            self.board.set(config.choices)
        except ValueError as error:
            raise UsageError(f"These plans are not for this model: {error}.") from error

    def whole_step_bytes(self, config: Config, script: Script) -> int | None:
        """Return the most that a whole step on fake tensors has alive beyond what is before it; ``None`` if none runs.

        Args:
            config: What is recomputed in it.
            script: What the script does around the model.
        """
        model = self.reference()
        assert model is not None, "a model that is called is there"
        try:
            meter = FakeSteps(model, self.found.structure.units, script, self.found.values).run(
                self.board, config.choices
            )
        except Exception as error:  # noqa: BLE001  (the model's own code runs there on tensors without values)
            _LOG.debug("no whole step can be run: %s", error)
            return None
        return meter.peak - meter.base

    @property
    def missed(self) -> tuple[str, ...]:
        """Paths of the units whose operators were kept in some calls, as their graph was another one there."""
        model = self.reference()
        if model is None:
            return ()
        rewrites = {
            effect.path: around
            for effect in self.board.effects
            for around in around_of(model.get_submodule(effect.path))
            if isinstance(around, Rewrite)
        }
        return tuple(sorted(path for path, rewrite in rewrites.items() if rewrite.missed))
