"""What a worker says of an exception that ends its script."""

from __future__ import annotations

import bdb
import traceback
from types import TracebackType
from typing import TYPE_CHECKING

from autorecompute.errors import AutorecomputeError, OwnCheckpointingError, ScriptError, SetupError, chain_of
from autorecompute.measurement import Outcome
from autorecompute.worker.protocol import Failed, Refused
from autorecompute.worker.rank import explain_missing_rank
from autorecompute.worker.script import last_lines, main_file

if TYPE_CHECKING:
    from autorecompute.backends.interface import WorkerBackend


def describe_failure(error: BaseException, backend: WorkerBackend, script: str) -> Failed | Refused:
    """Return what the controller is told; the whole traceback goes to the log, unless a sentence says it all.

    Args:
        error: What ended the script, or is about to.
        backend: The training system.
        script: The script's file.
    """
    if isinstance(error, SetupError):
        return Refused(message=str(error))
    # What a breakpoint in the model raises reaches us wrapped in what the training system makes of it.
    for origin in chain_of(error):
        if isinstance(origin, bdb.BdbQuit):
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=_describe_breakpoint(origin, script))
        if isinstance(origin, ScriptError):  # it names the line: a traceback through torch would bury that
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=str(origin))
        if isinstance(origin, OwnCheckpointingError):
            return Failed(outcome=Outcome.SCRIPT_ERROR, message=str(origin), is_usage=True)
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
