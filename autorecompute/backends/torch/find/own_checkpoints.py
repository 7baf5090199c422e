"""Checkpoints that a script makes itself, and layers that it has frozen for now."""

from __future__ import annotations

import collections
import contextlib
import functools
from typing import TYPE_CHECKING, Any

import torch.utils.checkpoint as torchs
from torch.utils.checkpoint import CheckpointFunction

from autorecompute.backends.torch.compiled.forms import has_compiled
from autorecompute.backends.torch.find.refusals import Reason
from autorecompute.backends.torch.find.structure import is_sharded, structure_of
from autorecompute.errors import OwnCheckpointingError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from torch.nn import Module, Parameter
    from torch.optim import Optimizer

    from autorecompute.backends.torch.find.refusals import RefusalError
    from autorecompute.backends.torch.find.structure import Structure


_OURS = "__autorecompute_checkpoints__"
_GENERATOR = "_checkpoint_without_reentrant_generator"
if hasattr(torchs, f"{_GENERATOR}_impl"):  # since torch 2.15, where the other name is for callers outside of torch
    _GENERATOR += "_impl"
_FUNCTION = "_gradient_checkpointing_func"
"""Under this name modules of transformers and diffusers keep what they checkpoint themselves with."""

COMPILED = (
    "The model is compiled, and the compiler makes the script's own checkpoints itself: leave --replace-checkpointing "
    "out, and take them out of the script."
)
STILL_ON = (
    "{place} is still recomputed by the script, by other means than torch.utils.checkpoint: switch that off in the "
    "script, and leave --replace-checkpointing out."
)


def as_ours(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that is about to be checkpointed as one of ours, which no replacement switches off."""
    setattr(function, _OURS, True)
    return function


@contextlib.contextmanager
def followed(around: Callable[[], contextlib.AbstractContextManager[object]] | None) -> Iterator[None]:
    """Enter a context around what each checkpoint of the script's runs in its forward pass, whether it is on or off.

    Without a context its checkpoints are off: what they are around runs plainly.
    """
    generator, apply = getattr(torchs, _GENERATOR), CheckpointFunction.apply
    own_apply = vars(CheckpointFunction).get("apply")

    def follow(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
        if hasattr(function, _OURS):
            yield from generator(function, *args, **kwargs)
        elif around is None:
            yield
        else:
            with around():
                yield from generator(function, *args, **kwargs)

    def follow_reentrant(function: Callable[..., Any], preserves_random_numbers: bool, *args: Any) -> Any:  # noqa: FBT001
        if around is None:
            return function(*args)
        with around():
            return apply(function, preserves_random_numbers, *args)

    setattr(torchs, _GENERATOR, follow)
    CheckpointFunction.apply = staticmethod(follow_reentrant)
    try:
        yield
    finally:
        setattr(torchs, _GENERATOR, generator)
        if own_apply is None:
            del CheckpointFunction.apply
        else:
            CheckpointFunction.apply = own_apply


_REPLACEMENTS: list[contextlib.ExitStack] = []
"""The replacement of the script's checkpoints in this process, if there is one."""


def replace() -> None:
    """Have the script's checkpoints run plainly in this process from now on; ours go on as they are."""
    if not _REPLACEMENTS:
        _REPLACEMENTS.append(contextlib.ExitStack())
        _REPLACEMENTS[0].enter_context(followed(None))


def restore() -> None:
    """Have them run as the script has them again."""
    while _REPLACEMENTS:
        _REPLACEMENTS.pop().close()


def is_replaced() -> bool:
    """Tell whether they run plainly."""
    return bool(_REPLACEMENTS)


def prepare(model: Module) -> None:
    """Have a model that is about to train keep what its checkpoints would have sent to the host, too.

    Raises:
        OwnCheckpointingError: it is compiled.
    """
    if has_compiled(model):
        raise OwnCheckpointingError(COMPILED)
    plain = functools.partial(torchs.checkpoint, use_reentrant=False)
    for module in model.modules():
        if _FUNCTION in vars(module):  # transformers 5 puts save_on_cpu around the checkpoint for offload=True
            setattr(module, _FUNCTION, plain)


def require_off(refusals: Iterable[RefusalError]) -> None:
    """Check that nothing is left of the script's own checkpointing.

    Raises:
        OwnCheckpointingError: a probe was refused a place for it.
    """
    for refusal in refusals:
        if refusal.reason is Reason.OWN_CHECKPOINT:
            raise OwnCheckpointingError(STILL_ON.format(place=refusal.place or "The model"))


def covered(checkpoints: Iterable[tuple[str, set[str]]], called: Collection[str]) -> set[str]:
    """Return the modules that run inside of checkpoints, with those whose calls consist of one checkpoint alone.

    Where a checkpoint runs no module, the one that makes it stands for what it runs. Of each checkpoint the path of the
    module that makes it is given, and the paths of those that are called inside of it.
    """
    below: dict[str, set[str]] = {}
    for path in called:
        if path:
            below.setdefault(_caller(path, called), set()).add(path)
    found: set[str] = set()
    for maker, inside in checkpoints:
        found |= inside or {maker}
        if maker and below.get(maker, set()) <= inside:
            found.add(maker)
    return found


def _caller(path: str, called: Collection[str]) -> str:
    """Return the nearest module above it among these; a list of modules is never called."""
    while path:
        path = path.rpartition(".")[0]
        if path in called:
            return path
    return ""


def places_of(paths: Collection[str], structure: Structure) -> tuple[str, ...]:
    """Return the script's outermost checkpoints, by group; with their number where they are not all of it."""
    outermost = (path for path in paths if not _caller(path, paths))
    groups = collections.Counter(structure.group_of(path) or path or "the model" for path in outermost)
    sizes = {group: len(structure.groups.get(group, ())) for group in groups}
    return tuple(
        f"{group} ({count} of {sizes[group]})" if count < sizes[group] else group for group, count in groups.items()
    )


def frozen_in(model: Module, optimizers: Iterable[Optimizer] | None) -> list[Parameter]:
    """Return the parameters that an optimizer would train, were they not frozen; all frozen ones for ``None``.

    Who thaws later freezes whole layers. Where each layer trains something, as with LoRA and other adapters, nothing is
    thawed. A sharded model, and one that is compiled, are taken as they are: what surrounds their parameters was made
    for that.
    """
    if is_sharded(model) or has_compiled(model):
        return []
    frozen = [one for one in model.parameters() if not one.requires_grad and one.dtype.is_floating_point]
    if optimizers is None:
        return frozen
    if (units := structure_of(model).units) and not any(_is_frozen(model.get_submodule(unit)) for unit in units):
        return []
    groups = [group["params"] for optimizer in optimizers for group in optimizer.param_groups]
    held = {id(parameter) for group in groups for parameter in group}
    return [parameter for parameter in frozen if id(parameter) in held]


def _is_frozen(layer: Module) -> bool:
    trains = [one.requires_grad for one in layer.parameters()]
    return bool(trains) and not any(trains)


def thaw(parameters: Iterable[Parameter], *, on: bool = True) -> None:
    """Have parameters trained, or not."""
    for parameter in parameters:
        parameter.requires_grad_(on)


@contextlib.contextmanager
def thawed(frozen: Collection[Parameter]) -> Iterator[None]:
    """Inside, parameters are trained that are frozen."""
    thaw(frozen)
    try:
        yield
    finally:
        thaw(frozen, on=False)
