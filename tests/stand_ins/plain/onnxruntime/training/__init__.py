"""Stands in for ONNX Runtime's training."""
