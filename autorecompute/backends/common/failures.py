"""What an exception says of memory, whoever raised it."""

from __future__ import annotations

import re

OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "Failed to allocate memory",
    "bad_alloc",
    "can't allocate memory",
    "CUDA failure 2",
    "ALLOC_FAILED",
)
"""Seen from torch's allocators, the C++ runtime and CUDA libraries."""

_ASKED = re.compile(r"CUDA out of memory\. Tried to allocate ([\d.]+ \w+)")


def is_out_of_memory(error: BaseException, text: str) -> bool:
    """Tell whether an exception means that memory ran out.

    Args:
        error: The exception.
        text: Its text, and those of the exceptions behind it.
    """
    return isinstance(error, MemoryError) or any(known in text for known in OUT_OF_MEMORY_TEXTS)


def describe_out_of_memory(error: BaseException) -> str:
    """Return what to say of an exception that means so: CUDA's own text is a paragraph about the whole card."""
    asked = _ASKED.search(str(error))
    return f"out of memory: it asked for {asked[1]} more" if asked else f"out of memory: {last_line(error)}"


def last_line(error: BaseException) -> str:
    """Return the last line of its text that says anything; its type where there is none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
