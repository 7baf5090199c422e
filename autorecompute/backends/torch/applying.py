"""Recompute switched on without a tuner: by a line of the script, or around a script that says nothing of it."""

from __future__ import annotations

import logging
import os
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from autorecompute.backends.torch import own_checkpoints
from autorecompute.backends.torch.compiled.forms import has_compiled, refusals_of_compiled
from autorecompute.backends.torch.identity import name_of
from autorecompute.backends.torch.interception import can_be_intercepted, put_around, release
from autorecompute.backends.torch.plans_file import PlansFile, read_plans_file, requested
from autorecompute.backends.torch.refusals import refusals_of_model, unwrapped
from autorecompute.backends.torch.roots import Roots
from autorecompute.backends.torch.sharded import is_sharded
from autorecompute.backends.torch.thawing import frozen_in, thawed
from autorecompute.backends.torch.tuned import Tuned
from autorecompute.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch.nn import Module
    from torch.optim import Optimizer

    from autorecompute.backends.torch.switchboard import Switchboard


_LOG = logging.getLogger(__name__)

MOST_NAMED = 8
"""So many choices are named in a message."""


class _Elsewhere:
    """Whether a tuner, or the environment, has decided already what this process recomputes."""

    decides = False


def decide_elsewhere() -> None:
    """Have :func:`apply` do nothing in this process."""
    _Elsewhere.decides = True


def is_decided() -> bool:
    """Tell whether :func:`apply` does nothing in this process."""
    return _Elsewhere.decides


def apply(model: Module, plans: str | os.PathLike[str] | None = None) -> None:
    """Recompute in the model what a file of plans says, from its first training call on.

    That call runs the model forward once more before it, to see what it computes; training goes on bit for bit as
    without.

    Args:
        model: The model, as it is called in training; one in ``DistributedDataParallel`` may be given with it.
        plans: The file. Without one ``AUTORECOMPUTE_PLANS`` names it, and where that names none, nothing is done: a
            script may call this and be tuned all the same.

    Raises:
        UsageError: the file cannot be read, or was measured on another model.
    """
    if _Elsewhere.decides:
        return
    wanted = requested(os.environ) if plans is None else read_plans_file(Path(plans))
    if wanted is None or wanted.does_nothing:
        return
    trained = unwrapped(model)
    require_model(wanted, trained)
    if has_compiled(trained):
        _apply_compiled(wanted, trained)
        return
    if not can_be_intercepted(trained):
        raise UsageError(f"{type(trained).__name__} has a forward set on the instance. Apply the plans before that.")
    _apply_at_first_call(wanted, trained)


def _apply_at_first_call(wanted: PlansFile, model: Module) -> None:
    def begin(forward: Callable[..., Any], module: Module, /, *args: Any, **kwargs: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        release(module)
        apply_now(wanted, module, args, kwargs)
        return module.forward(*args, **kwargs)

    if not is_sharded(model):
        put_around(model, [begin])
        return

    def begin_sharded(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module.training and torch.is_grad_enabled():
            hook.remove()
            apply_now(wanted, module, args, kwargs)

    # Before its parameters are gathered for the call: a run that is forgotten makes shards of them again.
    hook = model.register_forward_pre_hook(begin_sharded, prepend=True, with_kwargs=True)


def require_model(wanted: PlansFile, model: Module) -> None:
    """Check that a file of plans is for this model.

    Raises:
        UsageError: it was measured on another one, or nothing of this one can be recomputed.
    """
    for refusal in refusals_of_model(model):
        raise UsageError(f"The plans cannot be applied: {refusal}")
    here = name_of(model)
    if wanted.model and wanted.model != here:
        raise UsageError(
            f"These plans were {'made for' if wanted.is_unmeasured else 'measured on'} another model "
            f"({wanted.model}) than this one ({here}). "
            "Tune this one: another size, another class of a module or torch.compile makes other plans."
        )


def apply_now(
    wanted: PlansFile,
    model: Module,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optimizers: Sequence[Optimizer] | None = None,
) -> Tuned | None:
    """Recompute what a file of plans says, in a model that is about to be called with these arguments for training.

    What is switched has switches, but for a compiled model, which is run with what is on until it is gone.

    Args:
        wanted: What the file says.
        model: The model.
        args: The positional arguments of its call.
        kwargs: Its keyword arguments.
        optimizers: Those that train it; ``None`` where nobody knows.

    Raises:
        RefusedModelError: nothing of the model can be recomputed.
        UsageError: the plans were measured on another model, or are not offered by this one, or take the place of
            checkpoints that cannot be switched off.
    """
    require_model(wanted, model)
    if has_compiled(model):
        _apply_compiled(wanted, model)
        return None
    if wanted.replaces_checkpointing:
        own_checkpoints.replace()
        own_checkpoints.prepare(model)
    with thawed(frozen_in(model, optimizers or ())):
        tuned = Tuned.of(model, args, kwargs)
    if optimizers is None and _missing(wanted, tuned.board):
        with thawed(frozen_in(model, None)):
            tuned = Tuned.of(model, args, kwargs)
    if wanted.replaces_checkpointing:
        own_checkpoints.require_off(tuned.found.refusals)
    _require_offered(wanted, tuned.board)
    _tell_unmeasured(wanted)
    tuned.switch(wanted.config)
    return tuned


def _apply_compiled(wanted: PlansFile, model: Module) -> None:
    """Look at nothing: it holds for what is compiled from now on."""
    from autorecompute.backends.torch.compiled.detection import board_of

    if wanted.replaces_checkpointing:
        own_checkpoints.prepare(model)
    for refusal in refusals_of_compiled(model):
        raise UsageError(f"The plans cannot be applied: {refusal}")
    board = board_of(model, wanted.config.choices)
    _require_offered(wanted, board)
    _tell_unmeasured(wanted)
    board.set(wanted.config.choices)


def _missing(wanted: PlansFile, board: Switchboard) -> list[str]:
    """Return the choices that a model does not offer."""
    return sorted(
        str(choice)
        for choice in wanted.config.choices
        if choice.site not in board.sites or choice.option not in board.sites[choice.site].options
    )


def _require_offered(wanted: PlansFile, board: Switchboard) -> None:
    if missing := _missing(wanted, board):
        since = f", measured with torch {wanted.torch} and run with {torch.__version__}" if wanted.torch else ""
        others = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        names = ", ".join(missing[:MOST_NAMED]) + others
        raise UsageError(f"The model does not offer {names}{since}. Tune it again here.")


def _tell_unmeasured(wanted: PlansFile) -> None:
    if wanted.is_unmeasured:
        _LOG.warning("these plans are unmeasured: whether they fit and what they cost is predicted, tune measures it")


class Alike:
    """Applies plans to the first module that trains, and to others that are built like it: those that were measured.

    Args:
        wanted: What the file of plans says; ``None`` where there is none.
    """

    def __init__(self, wanted: PlansFile | None) -> None:
        self._wanted, self._name = wanted, ""
        self._met: weakref.WeakSet[Module] = weakref.WeakSet()

    def meet(
        self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any], optimizers: Sequence[Optimizer]
    ) -> Tuned | None:
        """Apply them to a module that is about to be called, the first time; ``None`` where nothing was switched.

        Raises:
            RefusedModelError: nothing of the model can be recomputed.
            UsageError: the plans were measured on another model, or are not offered by this one.
        """
        if self._wanted is None or self._wanted.does_nothing or root in self._met:
            return None
        self._met.add(root)
        name = name_of(root)
        self._name = self._name or name
        return apply_now(self._wanted, root, args, kwargs, optimizers) if name == self._name else None


class FirstRoots:
    """Applies plans in a process whose script says nothing of them, to all that trains in the first step.

    Args:
        wanted: What the file of plans says.
    """

    def __init__(self, wanted: PlansFile) -> None:
        self._alike, self._roots = Alike(wanted), Roots(self)
        self._has_stepped = False

    def install(self) -> None:
        """Wait for it."""
        self._roots.install()
        self._handle = register_optimizer_step_post_hook(self._note_step)

    def _note_step(self, *_: Any) -> None:
        self._has_stepped = True

    def about_to_run(self, root: Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Switch on, as it is about to be called, and after the first step follow nothing any more."""
        # Compiled code is not to see calls followed that later are not, and its plans hold for the whole process.
        if self._has_stepped or has_compiled(root):
            self._roots.uninstall()
            self._handle.remove()
        self._alike.meet(root, args, kwargs, self._roots.optimizers_of(root))

    def has_run(self, root: Module, result: Any) -> None:
        """Do nothing."""


def follow_environment() -> None:
    """Apply what ``AUTORECOMPUTE_PLANS`` names to the first module that trains; nothing where it names none.

    Raises:
        UsageError: the file cannot be read.
    """
    wanted = requested(os.environ)
    if wanted is not None and not wanted.does_nothing:
        FirstRoots(wanted).install()
        decide_elsewhere()
