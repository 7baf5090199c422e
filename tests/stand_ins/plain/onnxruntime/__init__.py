"""Stands in for ONNX Runtime where its scripts are to train in plain PyTorch."""
