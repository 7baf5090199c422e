"""What the code that calls a model does with its result, read from that code's own instructions."""

from __future__ import annotations

import dis
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from types import FrameType

_LIBRARIES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_BACKWARD = "backward"


def calling_frame() -> FrameType | None:
    """The innermost frame that is neither torch's nor ours; ``None`` where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame = frame.f_back
    return frame


def keeps_result(frame: FrameType | None) -> bool:
    """Whether the code that is calling a model now still has the result when its backward pass runs.

    That is so for ``logits = model(x)`` where the same function calls ``backward`` later. It is not so for
    ``criterion(model(x), y)``, nor in a function that returns the loss and takes the name with it.
    """
    return frame is not None and _BACKWARD in frame.f_code.co_names and _is_stored(frame)


def _is_stored(frame: FrameType) -> bool:
    """Whether the result of the call that runs in the frame, or another attribute of it than its loss, gets a name."""
    following = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    after = next((one for one in following if one.opname != "LOAD_ATTR" or one.argval == "loss"), None)
    return after is not None and after.opname.startswith(("STORE_", "UNPACK_"))
