"""Gives options to the exports that ORTModule makes; those that a script makes itself are left alone."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ORTMODULE = "onnxruntime.training.ortmodule"


def add_options(options: Callable[[], Mapping[str, Any]]) -> bool:
    """Pass more keyword arguments to ``torch.onnx.export`` wherever ORTModule calls it, over those of its own.

    Args:
        options: Gives them, and is asked at each export; with the same function again, nothing more happens.

    Returns:
        Whether the function is new.
    """
    import torch

    if not hasattr(torch.onnx.export, "added_options"):
        torch.onnx.export = _with_options(torch.onnx.export)
    added = torch.onnx.export.added_options
    is_new = options not in added
    added += [options] * is_new
    return is_new


def _with_options(export: Callable[..., Any]) -> Any:
    added: list[Callable[[], Mapping[str, Any]]] = []

    # ORTModule reads the signature of torch.onnx.export to decide what it may pass: functools.wraps keeps it visible.
    @functools.wraps(export)
    def export_with_options(*args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]).__module__.startswith(ORTMODULE):
            for options in added:
                kwargs.update(options())
        return export(*args, **kwargs)

    export_with_options.added_options = added  # type: ignore[attr-defined]
    return export_with_options
