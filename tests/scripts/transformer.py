"""Trains the transformer of ``plain_transformer.py`` in an ORTModule."""

from onnxruntime.training.ortmodule import ORTModule

from plain_transformer import main

main(ORTModule)
