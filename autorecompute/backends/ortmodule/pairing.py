"""Sees training forwards that have no backward of their own.

ORT draws the masks of a recomputed Dropout from two random streams, one for the forward and one for its repetition.
They stay in step only while each training forward is followed by its own backward; one forward too many, and every
later gradient is wrong, silently (seen on ORT 1.18 and 1.19).
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

PACKAGE = str(Path(__file__).parents[2])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


class ForwardPairing:
    """Counts forwards and backwards of the training sessions of this process."""

    def __init__(self) -> None:
        self._open_lines: list[str] = []
        self._overlapping: dict[str, str] = {}
        self._found: dict[str, str] = {}

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what was seen, a sentence for each line of the script."""
        return tuple(self._found.values())

    @property
    def has_open_forward(self) -> bool:
        """Tell whether a forward of this step has had no backward so far."""
        return bool(self._open_lines)

    def install(self) -> None:
        """Follow every training session of the process."""
        from onnxruntime.training.ortmodule._execution_agent import TrainingAgent

        run_forward, run_backward = TrainingAgent.run_forward, TrainingAgent.run_backward

        @functools.wraps(run_forward)
        def forward_and_count(agent: Any, *args: Any, **kwargs: Any) -> Any:
            self._begin(_line_of_user(sys._getframe(1)))  # noqa: SLF001  (documented, and no walk of all frames)
            return run_forward(agent, *args, **kwargs)

        @functools.wraps(run_backward)
        def backward_and_count(agent: Any, *args: Any, **kwargs: Any) -> Any:
            if self._open_lines:
                self._open_lines.pop()
            return run_backward(agent, *args, **kwargs)

        TrainingAgent.run_forward, TrainingAgent.run_backward = forward_and_count, backward_and_count

    def end_step(self) -> None:
        """Hold every forward of the step that has had no backward, or had it too late, against the script."""
        if not self._open_lines:
            # Otherwise those that came later overlapped with the one that is at fault.
            self._found |= self._overlapping
        self._overlapping.clear()
        for line in self._open_lines:
            self._found[line] = (
                f"{line}: a forward in training mode has no backward of its own. Recomputed Dropout would give wrong "
                "gradients from there on: call the model under torch.no_grad() or model.eval() there."
            )
        self._open_lines.clear()

    def _begin(self, line: str) -> None:
        if self._open_lines:
            self._overlapping[line] = (
                f"{line}: a forward in training mode begins before the last one's backward. Recomputed Dropout would "
                "give wrong gradients from there on: let each forward's backward come first."
            )
        self._open_lines.append(line)


def _line_of_user(frame: FrameType | None) -> str:
    """File and line of the innermost frame that is neither a library's nor ours."""
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((PACKAGE, *LIBRARIES, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "the script"
