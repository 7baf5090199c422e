"""Whether what an archive holds can have been measured: a record of the right type may still be nonsense, or worse."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from autorecompute.memory import Operation, StepProfile, Tensor
from autorecompute.plans import Config
from autorecompute.plans.expressions import ExpressionError, evaluate_tree, read
from autorecompute.studies.problem import SEVERAL_BATCHES

if TYPE_CHECKING:
    from autorecompute.plans import Space
    from autorecompute.result import Best, Result
    from autorecompute.studies.analysis import Analysis
    from autorecompute.studies.problem import Problem

LARGEST = 1 << 60
"""No memory has so many bytes, no study so many trials, no training so many seconds or samples."""

MANY = 1_000_000
"""More operations than any step has."""

_ANYTHING = {"losses", "worst", "peak_low", "step_low", "relative_high", "high"}
"""What may be negative, or as large as a float can be, or none: losses, their differences, ends of wide intervals."""

_POSITIVE = {"step_seconds", "reference_seconds", "samples", "batch", "limit_bytes"}
"""What divides something, or is nothing without any."""

_SEVERAL = {("Problem", "batch")}
"""Where 0 stands for several batches."""


class WrongLineError(ValueError):
    """A line of an archive is not what it should be; the message says what is wrong with it."""


def require_plausible(value: object, name: str = "", kind: str = "") -> None:
    """Checks every number in a record, and every profiled step.

    Args:
        value: The record, or a part of it.
        name: Its name in what it is a part of.
        kind: The record that has that name.

    Raises:
        WrongLineError: a number cannot have been measured, or a step cannot have run.
    """
    if isinstance(value, StepProfile):
        _require_step(value)
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            require_plausible(getattr(value, field.name), field.name, type(value).__name__)
    elif isinstance(value, Mapping):
        for entry in value.values():
            require_plausible(entry, name, kind)
    elif isinstance(value, tuple | list | frozenset):
        for entry in value:
            require_plausible(entry, name, kind)
    elif isinstance(value, int | float) and not isinstance(value, bool) and name not in _ANYTHING:
        is_zero_allowed = name not in _POSITIVE or (kind, name) in _SEVERAL
        if not 0 <= value <= LARGEST or not (value or is_zero_allowed):
            raise WrongLineError(f"holds {value!r:.40} as {name}, which cannot be")


def require_plain_step(analysis: Analysis) -> None:
    """Checks that one of the profiled steps is without recompute, which all others are held against.

    Raises:
        WrongLineError: there is none.
    """
    if all(entry.config != Config() for entry in analysis.profiles):
        raise WrongLineError("holds no step without recompute")


def require_own_choices(config: Config, space: Space) -> None:
    """Checks that a config switches on nothing but what the study's model offers.

    Raises:
        WrongLineError: it has another choice.
    """
    if space.is_mix(config) or config in space.opaque_presets.values():
        return
    if strangers := [text for text in config.texts if not space.is_mix(Config.parse([text]))]:
        raise WrongLineError(f"holds the choice '{strangers[0][:80]}', which the study's model does not offer")


def require_confirmed(result: Result, confirmed: list[Best], problem: Problem, space: Space) -> None:
    """Checks that the archive has the run that confirmed its answer.

    Raises:
        WrongLineError: it says that the answer was confirmed, and no line before it does.
    """
    if result.best is None or not result.best.confirmed or problem.batch == SEVERAL_BATCHES:
        # What confirmed the answer of several batches is in the studies of each.
        return
    require_own_choices(result.best.config, space)
    # A knob that was kept may have left some of the winner's plans without a node.
    if not result.best.knobs and result.best.config not in {best.config for best in confirmed}:
        raise WrongLineError("holds a config as confirmed that no line before it confirms")


def _require_step(profile: StepProfile) -> None:
    count = len(profile.operations)
    if not 0 < count <= MANY or profile.backward > count:
        raise WrongLineError(f"holds a step of {count} operations, {profile.backward} of them before the backward pass")
    if not all(size > 0 for size in profile.dims.values()):
        raise WrongLineError("holds a step at a dimension of nothing")
    made: set[str] = set()
    makers = {value for operation in profile.operations for value in operation.makes}
    for operation in profile.operations:
        _require_order(operation, made, makers)
        made.update(operation.makes)
    for tensor in profile.tensors:
        _require_tensor(tensor, profile)


def _require_order(operation: Operation, made: set[str], makers: set[str]) -> None:
    # What goes round in circles would be followed for ever.
    is_early = any(value in makers and value not in made for value in operation.reads)
    is_again = not made.isdisjoint(operation.makes)
    is_empty = operation.shares and not (operation.reads and operation.makes)
    if is_early or is_again or is_empty:
        raise WrongLineError(f"holds the operation '{operation.name[:80]}', which cannot run where it stands")


def _require_tensor(tensor: Tensor, profile: StepProfile) -> None:
    if not 0 <= tensor.first < len(profile.operations) or not tensor.first <= tensor.last <= len(profile.operations):
        raise WrongLineError(f"holds the tensor '{tensor.name[:80]}' from {tensor.first} to {tensor.last}")
    for size in tensor.shape:
        _require_size(size, profile)
    if tensor.bytes_at(profile.dims) > LARGEST:
        raise WrongLineError(f"holds the tensor '{tensor.name[:80]}' of more bytes than there can be")


def _require_size(text: str, profile: StepProfile) -> None:
    try:
        # A dimension may have a name that is no word of any expression.
        size = profile.dims[text] if text in profile.dims else evaluate_tree(read(text), profile.dims)
    except ExpressionError as error:
        raise WrongLineError(f"holds a size that cannot be read: {error}") from error
    except (KeyError, ZeroDivisionError) as error:
        raise WrongLineError(f"holds the size '{text[:80]}', which has no value in its step") from error
    if not 0 <= size <= LARGEST:
        raise WrongLineError(f"holds the size '{text[:80]}', which cannot be")
