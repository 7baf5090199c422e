"""Model of ORT's order of operations and of its allocator, which turn lifetimes into peaks."""

from autorecompute.backends.ortmodule.memory.blueprint import Blueprint, draw_blueprint, write_out
from autorecompute.backends.ortmodule.memory.simulator import OrtSimulator
from autorecompute.backends.ortmodule.memory.step_model import OrtMemoryModel

__all__ = ["Blueprint", "OrtMemoryModel", "OrtSimulator", "draw_blueprint", "write_out"]
