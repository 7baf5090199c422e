"""``autorecompute.auto``: a training that has begun, in a script or a notebook, starts a search beside itself."""

from __future__ import annotations

import atexit
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute.backends import registry
from autorecompute.errors import UsageError
from autorecompute.units import MIB, format_bytes, format_count, parse_bytes
from autorecompute.worker.followed import FollowedTraining
from autorecompute.worker.protocol import SearchRequest, Settings
from autorecompute.worker.rank import is_first
from autorecompute.worker.search_process import start_search

if TYPE_CHECKING:
    from collections.abc import Iterable

_LOG = logging.getLogger("autorecompute")


def tune_from_here(
    model: Any, optimizers: Any, *, memory_limit: str | int | None, study: str | None, tuning_steps: int
) -> None:
    """See :func:`autorecompute.auto`.

    Raises:
        UsageError: the arguments do not make sense.
    """
    given = _require_trained_by(model, optimizers)
    if tuning_steps < 1:
        raise UsageError(f"tuning_steps={tuning_steps} leaves no step for a trial. Give 1 or more.")
    request = _describe_program(type(model).__name__, _as_limit(memory_limit), study, tuning_steps)
    if _Beside.current is None and registry.is_decided():
        _say(logging.INFO, "nothing is tuned from here: this process was started with what to recompute")
        return
    try:
        _begin(request, given)
    except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
        if is_first():
            _say(logging.WARNING, f"the training goes on without autorecompute: {error}")


class _Beside:
    """The search beside this process."""

    current: _Beside | None = None

    def __init__(self, request: SearchRequest, optimizers: list[Any]) -> None:
        settings = Settings(address="", backend=registry.plain_name(), tuning_steps=request.steps)
        channel = start_search(request) if is_first() else None
        try:
            self._training = FollowedTraining(channel, settings, _say, optimizers)
        except BaseException:
            if channel is not None:
                channel.close()
            raise
        self._error_before = _last_error()
        atexit.register(self._end)
        limit = "" if request.limit_bytes is None else f" under {format_bytes(request.limit_bytes)}"
        steps = format_count(request.steps, "step")
        if is_first():
            _say(logging.INFO, f"looking for what to recompute{limit}, in {steps} of this training at most")

    def leave(self) -> None:
        """End the search and its config."""
        atexit.unregister(self._end)
        self._training.detach(self._error)

    @property
    def _error(self) -> BaseException | None:
        """Return what Python has printed since the search began."""
        error = _last_error()
        return None if error is self._error_before else error

    def _end(self) -> None:
        self._training.guard.end(self._error)


def _say(level: int, text: str) -> None:
    """Tell the log. Where a program has set none up, Python prints the words alone, so they say who speaks."""
    _LOG.log(level, "%s%s", "" if _LOG.hasHandlers() else f"{_LOG.name}: ", text)


def _last_error() -> BaseException | None:
    """Return the last exception that nobody has caught: an interpreter goes on after it, and a script ends."""
    return getattr(sys, "last_value", None)


def _begin(request: SearchRequest, optimizers: list[Any]) -> None:
    before, _Beside.current = _Beside.current, None
    if before is not None:
        before.leave()
    _Beside.current = _Beside(request, optimizers)


def _describe_program(name: str, limit_bytes: int | None, study: str | None, steps: int) -> SearchRequest:
    """Return what runs here: a script, a module, or what somebody types."""
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    is_module = spec is not None and file is not None
    script = spec.name.removesuffix(".__main__") if spec is not None and is_module else file
    return SearchRequest(
        script=script if script is not None else name,
        is_module=is_module,
        is_typed=not is_module and (file is None or not Path(file).is_file()),
        arguments=tuple(sys.argv[1:]) if file is not None else (),
        limit_bytes=limit_bytes,
        study=study,
        steps=steps,
    )


def _as_limit(memory_limit: str | int | None) -> int | None:
    if memory_limit is None:
        return None
    limit_bytes = parse_bytes(str(memory_limit))
    if limit_bytes < MIB:
        raise UsageError(f"memory_limit={memory_limit} is {limit_bytes} bytes. Write a unit with it, such as 40GiB.")
    return limit_bytes


def _require_trained_by(model: Any, optimizers: Any) -> list[Any]:
    """Return the optimizers, as torch's own: what libraries put around them has the optimizer in it."""
    import torch

    given: Iterable[Any] = [optimizers] if hasattr(optimizers, "param_groups") else optimizers
    own = [getattr(one, "optimizer", one) for one in given]
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"autorecompute.auto takes a torch.nn.Module, and {type(model).__name__} is none.")
    if not all(isinstance(one, torch.optim.Optimizer) for one in own):
        raise UsageError("autorecompute.auto takes torch optimizers: one, or several in a list.")
    trained = {id(parameter) for one in own for group in one.param_groups for parameter in group["params"]}
    if trained.isdisjoint(map(id, model.parameters())):
        raise UsageError("The optimizer has no parameter of the model. Give both as they are trained.")
    return own
