"""How ORT's order of operations and its allocator turn lifetimes into peaks."""

from autorecompute.backends.ortmodule.memory.blueprint import Blueprint, draw_blueprint
from autorecompute.backends.ortmodule.memory.simulator import OrtSimulator
from autorecompute.backends.ortmodule.memory.step_model import OrtMemoryModel
from autorecompute.backends.ortmodule.memory.written import write_out

__all__ = ["Blueprint", "OrtMemoryModel", "OrtSimulator", "draw_blueprint", "write_out"]
