"""A training that is tuned while it runs.

``python -m autorecompute.worker.training SCRIPT ARGS`` runs the user's script; ``autorecompute.auto`` is called in one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autorecompute import codec, result
from autorecompute.backends import registry
from autorecompute.errors import SetupError, UsageError, log
from autorecompute.units import MIB, format_bytes, format_count, parse_bytes
from autorecompute.worker import hooks, script
from autorecompute.worker.guard import Guard, TrainingAgent
from autorecompute.worker.protocol import SETTINGS_VARIABLE, SearchRequest, Settings, is_alone, is_first
from autorecompute.worker.script import from_script, run_words, script_file
from autorecompute.worker.training_line import SideChannel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from types import TracebackType

    from autorecompute.worker.guard import Say


# A notebook may have put this package on its module path by itself.
PACKAGES = str(Path(__file__).parents[2])
# Leaves a search that is nobody's child: a script may wait for all of its own.
BESIDE = """
import os, sys
if os.fork():
    os._exit(0)
sys.path.append(sys.argv[1])
from autorecompute.cli.train import training_search
training_search(int(sys.argv[2]), sys.argv[3])
"""
START_SECONDS = 60.0


def start_search(request: SearchRequest) -> SideChannel:
    """Start a search in a process of its own, without a terminal and without output, and give the line to it.

    Raises:
        SetupError: that cannot be done.
    """
    ours, its = socket.socketpair()
    channel = SideChannel(ours.detach())
    words = [PACKAGES, str(its.fileno()), codec.encode(request).decode()]
    with its, ExitStack() as failing:
        failing.callback(channel.close)
        try:
            subprocess.run(
                # Not from the working folder, where a notebook may lie beside a file that is called like a module.
                [sys.executable, "-P", "-c", BESIDE, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
                timeout=START_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise SetupError(f"{sys.executable} cannot be started for the search: {error}") from error
        failing.pop_all()
    return channel


NOT_GIVEN = "an optimizer steps that autorecompute.auto was not given, and peaks are known of the others alone"


def follow_training(
    channel: SideChannel | None, settings: Settings, say: Say, optimizers: Collection[Any] = ()
) -> tuple[Guard, Callable[[BaseException | None], None]]:
    """Put in the hooks that follow a training; return the guard that they tell, and what takes them out again.

    That recomputes nothing from then on. It is given the error that has ended the training, or none. Of several ranks
    the first one alone has a channel, or starts the search that the settings ask for. Where optimizers are given, they
    train already, and the search ends where another one steps: it was made before, and nobody knows what it trains.

    Raises:
        SetupError: the training system lacks something, or the search cannot be started.
    """
    speaks = is_first()
    if settings.search is not None and speaks:
        channel = start_search(settings.search)
    ends = ExitStack()
    with ExitStack() as failing:
        if channel is not None:
            failing.callback(channel.close)
        schedulers: weakref.WeakSet[Any] = weakref.WeakSet()
        backend: Any = registry.worker(registry.plain_name(), Path())  # which can join a training that goes on
        settings = settings if speaks else replace(settings, tuning_steps=0)
        agent = TrainingAgent(channel, backend, settings, schedulers, is_alone=channel is not None and is_alone())
        guard = Guard(agent, say, is_first=speaks)
        parameters = {id(one) for optimizer in optimizers for one in _parameters_of(optimizer)}

        def on_step(optimizer: Any) -> None:
            if parameters and parameters.isdisjoint(map(id, _parameters_of(optimizer))):
                guard.on_unknown(NOT_GIVEN)
            guard.on_step(optimizer)

        backend.install(guard)
        for optimizer in optimizers:
            backend.note(optimizer)
            agent.on_optimizer()
        ends.callback(hooks.follow_schedulers(schedulers))
        ends.callback(hooks.follow_steps(on_step, guard.on_skip, guard.on_failure))
        ends.callback(hooks.follow_losses(guard.on_loss, guard.on_failure))
        ends.callback(hooks.follow_optimizers(guard.on_optimizer))
        os.register_at_fork(after_in_child=guard.leave)
        failing.pop_all()

    def detach(error: BaseException | None) -> None:
        ends.close()
        guard.release(error)
        backend.uninstall()

    return guard, detach


def _parameters_of(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def tune_from_here(  # noqa: PLR0913  (what a user may say)
    model: Any,
    optimizers: Any,
    *,
    memory_limit: str | int | None,
    study: str | None,
    tuning_steps: int,
    longest: int | None,
) -> None:
    """See :func:`autorecompute.auto`.

    Raises:
        UsageError: the arguments do not make sense.
    """
    given = _require_trained_by(model, optimizers)
    limit_bytes = require_options(memory_limit, tuning_steps, longest)
    request = replace(
        _describe_program(type(model).__name__, tuning_steps), limit_bytes=limit_bytes, study=study, longest=longest
    )
    if not _LEAVE and registry.is_decided():
        log(logging.INFO, "nothing is tuned from here: this process was started with what to recompute")
        return
    try:
        _begin(request, given)
    except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
        if is_first():
            log(logging.WARNING, f"the training goes on without autorecompute: {error}")


_LEAVE: list[Callable[[], None]] = []  # what ends the search beside this process, and its config, if there is one


def _begin(request: SearchRequest, optimizers: list[Any]) -> None:
    if request.longest is not None and not is_alone():
        raise UsageError("ranks may have batches of different lengths in one step: leave longest out")
    while _LEAVE:
        _LEAVE.pop()()
    settings = Settings(
        backend=registry.plain_name(), search=request, tuning_steps=request.steps, longest=request.longest
    )
    guard, detach = follow_training(None, settings, log, optimizers)
    # The last exception that nobody has caught: an interpreter goes on after it, and a script ends.
    error_before = getattr(sys, "last_value", None)

    def error_since() -> BaseException | None:
        error = getattr(sys, "last_value", None)
        return None if error is error_before else error

    def end() -> None:
        guard.end(error_since())

    def leave() -> None:
        atexit.unregister(end)
        detach(error_since())

    atexit.register(end)
    _LEAVE.append(leave)
    limit = "" if request.limit_bytes is None else f" under {format_bytes(request.limit_bytes)}"
    steps = format_count(request.steps, "step")
    if is_first():
        log(logging.INFO, f"looking for what to recompute{limit}, in {steps} of this training at most")


def _describe_program(name: str, steps: int) -> SearchRequest:
    main = sys.modules.get("__main__")
    file, spec = getattr(main, "__file__", None), getattr(main, "__spec__", None)
    is_module = spec is not None and file is not None
    script = spec.name.removesuffix(".__main__") if spec is not None and is_module else file
    return SearchRequest(
        script=script if script is not None else name,
        is_module=is_module,
        is_typed=not is_module and (file is None or not Path(file).is_file()),
        arguments=tuple(sys.argv[1:]) if file is not None else (),
        steps=steps,
    )


def require_options(memory_limit: str | int | None, tuning_steps: int, longest: int | None) -> int | None:
    """Return the limit in bytes, or none where none is given.

    Raises:
        UsageError: the limit cannot be one, there is no step for a trial, or no sample can be so long.
    """
    if longest is not None and (not isinstance(longest, int) or longest < 1):
        raise UsageError(f"longest={longest} is no number of tokens. Give those of the longest sample.")
    if tuning_steps < 1:
        raise UsageError(f"tuning_steps={tuning_steps} leaves no step for a trial. Give 1 or more.")
    if memory_limit is None:
        return None
    limit_bytes = parse_bytes(str(memory_limit))
    if limit_bytes < MIB:
        raise UsageError(f"memory_limit={memory_limit} is {limit_bytes} bytes. Write a unit with it, such as 40GiB.")
    return limit_bytes


def _require_trained_by(model: Any, optimizers: Any) -> list[Any]:
    """Return the optimizers, as torch's own: what libraries put around them has the optimizer in it."""
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"autorecompute.auto takes a torch.nn.Module, and {type(model).__name__} is none.")
    if optimizers is None:
        raise UsageError(
            "autorecompute.auto is given no optimizer. Make it first. A Trainer that makes its own when it trains is "
            "given alone: autorecompute.auto(trainer)"
        )
    given: Iterable[Any] = optimizers if isinstance(optimizers, list | tuple) else [optimizers]
    own = [getattr(one, "optimizer", one) for one in given]
    if not all(isinstance(one, torch.optim.Optimizer) for one in own):
        raise UsageError("autorecompute.auto takes torch optimizers: one, or several in a list.")
    trained = {id(parameter) for one in own for parameter in _parameters_of(one)}
    if trained.isdisjoint(map(id, model.parameters())):
        raise UsageError("The optimizer has no parameter of the model. Give both as they are trained.")
    return own


def main() -> None:
    """Run the script to its own end, which is this process's end."""
    # The script and what it starts must not take themselves for workers.
    settings = codec.decode(os.environ.pop(SETTINGS_VARIABLE).encode(), Settings)
    result.take(os.environ)
    channel = SideChannel(int(settings.address)) if settings.search is None else None
    begun: list[Guard | None] = []
    # Not before: a script may set variables that are read when torch is imported.
    registry.call_when_imported(settings.backend, lambda: begun.append(_follow(settings, channel)))
    try:
        words = sys.argv[1:]
        _show_own_frames_alone(script_file(words))
        run_words(words)
    except BaseException as error:
        _end(begun, error)
        raise
    _end(begun, None)


def _follow(settings: Settings, channel: SideChannel | None) -> Guard | None:
    try:
        return follow_training(channel, settings, say)[0]
    except Exception as error:  # noqa: BLE001  (nothing of ours may end the training)
        if is_first():
            say(logging.WARNING, f"the script trains without autorecompute: {str(error).rstrip('.')}.")
        return None


def _end(begun: list[Guard | None], error: BaseException | None) -> None:
    guard = begun[-1] if begun else None
    if guard is not None:
        guard.end(error)
    elif not begun and "torch" in sys.modules:
        say(logging.WARNING, f"nothing was tuned. {script.PASSED_BY}")


def say(level: int, text: str) -> None:
    """Print a line for the user, if there is anybody to read it."""
    del level
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"autorecompute: {text}\n")
        sys.stderr.flush()


def _show_own_frames_alone(script: str) -> None:
    """Have a traceback begin with the script, as it does without this tool."""
    show = sys.excepthook

    def show_own(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        own = from_script(trace, script)
        show(kind, error.with_traceback(own), own)

    sys.excepthook = show_own


if __name__ == "__main__":
    main()
