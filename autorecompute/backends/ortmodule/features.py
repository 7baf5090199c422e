"""What this ONNX Runtime was built with, and what its model has: some knobs do nothing without."""

from __future__ import annotations

import importlib.util
from typing import Any

from autorecompute.backends.ortmodule.knobs import CONVOLUTION, CUSTOM_AUTOGRAD, TRITON, TRITON_BUILD


def read_features(graph: Any) -> tuple[str, ...]:
    """The features there are.

    Args:
        graph: The training graph.
    """
    from onnxruntime.capi import _pybind_state as binding
    from onnxruntime.training.ortmodule._custom_autograd_function import custom_autograd_function_enabler

    found = {
        TRITON_BUILD: binding.is_triton_enabled(),
        TRITON: importlib.util.find_spec("triton") is not None,
        CUSTOM_AUTOGRAD: custom_autograd_function_enabler.state,
        CONVOLUTION: any(node.op_type == "Conv" for node in graph.node),
    }
    return tuple(name for name, is_there in found.items() if is_there)
