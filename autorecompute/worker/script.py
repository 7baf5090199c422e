"""Runs a script as `__main__`, and says how it ended."""

from __future__ import annotations

import bdb
import builtins
import functools
import importlib.util
import os
import sys
import threading
import traceback
import types
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autorecompute.errors import AutorecomputeError, OwnCheckpointingError, ScriptError, SetupError, chain_of
from autorecompute.measurement import Outcome
from autorecompute.training_job import ACCUMULATION_VARIABLE, BATCH_VARIABLE
from autorecompute.worker.protocol import MODULE_FLAG, Channel, Failed, explain_missing_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from importlib.machinery import ModuleSpec
    from types import CodeType

    from autorecompute.backends.interface import WorkerBackend


TRACE_LINES = 12


def script_file(words: list[str]) -> str:
    """Return the file that a worker's command line names, of a module its origin."""
    return str(find_module(words[1]).origin) if words[0] == MODULE_FLAG else words[0]


def run_words(words: list[str]) -> None:
    """Run the script or the module that a worker's command line names, with its arguments."""
    if words[0] == MODULE_FLAG:
        run_module_as_main(words[1], words[2:])
    else:
        run_as_main(words[0], words[1:])


def run_as_main(script: str, arguments: list[str]) -> None:
    """Run the script as ``__main__``, with its folder first on the module path and its own arguments."""
    # Not runpy: it takes the module away when the script ends, and puts its path in place of the user's in argv.
    sys.argv = [script, *arguments]
    _lead_module_path(str(Path(script).resolve().parent))
    # The script has its own future statements, not those of this module.
    code = compile(Path(script).read_bytes(), main_file(script), "exec", dont_inherit=True)
    _run(code, __file__=main_file(script))


def run_module_as_main(name: str, arguments: list[str]) -> None:
    """Run a module as ``python -m`` would, with the working directory first on the module path."""
    _lead_module_path(os.getcwd())  # noqa: PTH109  (a string, as Python puts it there)
    spec = find_module(name)
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    sys.argv = [str(spec.origin), *arguments]
    _run(code, __file__=spec.origin, __spec__=spec, __package__=spec.parent, __loader__=spec.loader)


def find_module(name: str) -> ModuleSpec:
    """Return the module of this name; of a package, the one that runs it.

    Raises:
        ImportError: there is no such module, or it has nothing to run.
    """
    spec = importlib.util.find_spec(name)
    if spec is not None and spec.submodule_search_locations is not None:
        return find_module(f"{name}.__main__")
    if spec is None or not spec.has_location:
        raise ModuleNotFoundError(f"No module named {name}", name=name)
    return spec


def _lead_module_path(folder: str) -> None:
    # Under -P or PYTHONSAFEPATH Python puts no folder there: the first entry is the user's own.
    if not sys.flags.safe_path:
        sys.path[0] = folder


def _run(code: CodeType, **names: object) -> None:
    main = types.ModuleType("__main__")
    main.__dict__.update(names, __builtins__=builtins)
    sys.modules["__main__"] = main
    # Processes that the script spawns know its classes by this name, which multiprocessing set when it was imported.
    sys.modules["__mp_main__"] = main
    try:
        exec(code, main.__dict__)  # noqa: S102  (the user's own script, as Python would)
    except SystemExit:
        _wait_for_threads()
        raise
    _wait_for_threads()


def _wait_for_threads() -> None:
    # As Python does before a process ends, and not by joining them: pools of threads wait for work until they are told
    # that none comes.
    threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001


@functools.cache
def main_file(script: str) -> str:
    """Return the script's ``__file__``: the working directory at the start, and the path as it was given."""
    return os.path.join(os.getcwd(), script)  # noqa: PTH109, PTH118  (pathlib would tidy the path up)


def last_lines(error: BaseException, script: str) -> tuple[str, ...]:
    """Return the end of the traceback, from the script's first frame on."""
    text = "".join(traceback.format_exception(type(error), error, from_script(error.__traceback__, script)))
    return tuple(text.rstrip().splitlines()[-TRACE_LINES:])


def from_script(entry: TracebackType | None, script: str) -> TracebackType | None:
    """Return the traceback from the script's first frame on; nothing if it has none, as one that cannot be compiled."""
    while entry is not None and entry.tb_frame.f_code.co_filename != main_file(script):
        entry = entry.tb_next
    return entry


TRAINS_ELSEWHERE = (
    "The script trains in a process that it starts itself (multiprocessing or os.fork), and only its own process is "
    "measured. Train in the script's own process and in the foreground, or have --launcher start the processes that "
    "train."
)
STARTED = (
    "It started other processes, and only its own is measured: if one of them is to train, train in the script's own "
    "process, or have --launcher start the processes that train."
)


def follow_children(address: str, has_trained: Callable[[], bool]) -> Callable[[], bool]:
    """Have each process that this one starts tell the controller if it trains before this one does.

    Return what tells whether any was started. One that was not forked calls the controller's address by itself.
    """
    started = threading.Event()
    os.register_at_fork(after_in_parent=started.set)
    start = BaseProcess.start

    @functools.wraps(start)
    def start_and_follow(process: Any) -> None:
        started.set()
        if not has_trained() and process._target is not None:  # noqa: SLF001  (its target has no other name)
            process._target = functools.partial(run_followed, address, process._target)  # noqa: SLF001
        start(process)

    BaseProcess.start = start_and_follow  # type: ignore[assignment,method-assign]
    return started.is_set


def run_followed(address: str, target: Callable[..., object], *args: object, **kwargs: object) -> None:
    """Run what a process was started for, and end it at its first optimizer step; tell the controller.

    A process that imports torch later than the script itself is not followed.
    """
    # Whatever the target needs has been imported with it; nothing else is to be imported for our sake.
    if "torch" in sys.modules:
        from torch.compiler import disable
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(disable(lambda *_: _tell(address)))
    target(*args, **kwargs)


def _tell(address: str) -> None:
    Channel(address).send(Failed(outcome=Outcome.SCRIPT_ERROR, message=TRAINS_ELSEWHERE))
    raise SystemExit(1)


STEPS_WITHOUT_SESSION = 10  # optimizer steps without a training session: there is none to come
BACKWARDS_WITHOUT_OPTIMIZER = 20  # of a script that has made no optimizer, and so changes the weights by itself
MISSED_STEPS = 12  # in a row may miss the target batch: loaders prefetch, and an epoch ends with a smaller batch
SKIPPED_STEPS = 50  # in a row may be skipped by a GradScaler: it begins with a scale that is too large, and halves it
COMPILATIONS = 8  # in the steps of one config. Two are usual: other lengths bring one that holds for any length

NO_TORCH = "It never imported torch, so that there was nothing to tune. Give the script that trains."

PASSED_BY = (
    "The script changes how Python imports, and torch was imported unnoticed. Import torch before sys.meta_path is "
    "changed."
)

NO_OPTIMIZER = "No torch.optim optimizer was found, whose step() ends a training step. Train with one."

OTHER_BATCH = (
    "The model received a batch of {batch}, not {target}. Write {{batch}} where the script's arguments take it, name "
    f"its flag with --batch-flag, or read {BATCH_VARIABLE} in the script. The first dimension of the model's inputs is "
    "taken for the batch: where it is another one, leave --target-batch out."
)

OTHER_BATCHES = (
    "The script's batches differ in size: the model received {batch} samples after {target}. Trials compare steps of "
    "one batch: give it batches of one size for the tuning. The first dimension of the model's inputs is taken for it."
)

OTHER_PASSES = (
    "The script makes a step of {passes} x {batch} samples, and was told to make one of {wanted} x {batch}. Write "
    "{{accumulation}} where its arguments take the number of passes, name its flag with --accumulation-flag, or read "
    f"{ACCUMULATION_VARIABLE} in the script."
)

SHORT_EPOCH = (
    "An epoch has {samples} samples, and a step was to be of {wanted}. Ask for a --global-batch of {samples} at most, "
    "or give the training more samples."
)

NO_OTHER_BATCH = (
    "No DataLoader draws the batch, and the model returns no loss, so that it cannot be changed while the script runs."
)

NO_SESSION = f"The script took {STEPS_WITHOUT_SESSION} optimizer steps without training a model that can be tuned."

FELL_BACK = "The script goes on without the training system that is tuned, and nothing is recomputed."

STEPS_IN_BACKWARD = (
    "The optimizer's step() runs inside backward(), in a hook on a gradient, and a config can be swapped only between "
    "two steps. Call step() after backward() while you tune."
)

COMPILES_ON = (
    "The model recompiles in every step, so that no config could be measured: it is given tensors "
    "of other shapes each time. Pad its batches, or compile it with dynamic=True."
)

SKIPS_ON = (
    f"The GradScaler skipped more than {SKIPPED_STEPS} steps in a row: no gradients were finite. Begin with a smaller "
    "scale, or look for what is not finite in float16."
)


def describe_failure(error: BaseException, backend: WorkerBackend, script: str) -> Failed:
    """Describe a failure for the controller; the whole traceback goes to the log, unless a sentence says it all."""
    if isinstance(error, SetupError):
        return Failed(outcome=Outcome.SCRIPT_ERROR, message=str(error), is_setup=True)
    # What a breakpoint in the model raises reaches us wrapped in what the training system makes of it.
    for origin in chain_of(error):
        if isinstance(origin, bdb.BdbQuit):
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=_describe_breakpoint(origin, script))
        # Its message names the line: a traceback through torch would bury that.
        if isinstance(origin, ScriptError | OwnCheckpointingError):
            is_usage = isinstance(origin, OwnCheckpointingError)
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=str(origin), is_usage=is_usage)
    traceback.print_exception(error)
    if text := explain_missing_rank(error):
        return Failed(outcome=Outcome.SCRIPT_ERROR, message=text)
    outcome, message = backend.classify(error)
    # What we refuse is told in a sentence, and the script's lines say nothing of it.
    is_refusal = any(isinstance(origin, AutorecomputeError) for origin in chain_of(error))
    return Failed(outcome=outcome, message=message, trace=() if is_refusal else last_lines(error, script))


def with_callers(error: BaseException) -> BaseException:
    """Return the error with a traceback as if nobody had caught it here, from the first frame of the process on."""
    trace = error.__traceback__
    frame = trace.tb_frame.f_back if trace is not None else None
    while frame is not None:
        trace = TracebackType(trace, frame, frame.f_lasti, frame.f_lineno)
        frame = frame.f_back
    return error.with_traceback(trace)


def _describe_breakpoint(error: BaseException, script: str) -> str:
    # Nothing can be typed into a trial: the debugger reads the end of its input and quits.
    stops = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == main_file(script)]
    where = f"{script}:{stops[-1].lineno}" if stops else script
    return (
        f"The script stops in the debugger at {where}. Take the breakpoint out, or debug it in the foreground with "
        "--debug-script."
    )
