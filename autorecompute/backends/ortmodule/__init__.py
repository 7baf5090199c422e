"""ONNX Runtime's ORTModule: all that knows its names, versions and habits."""

from __future__ import annotations
