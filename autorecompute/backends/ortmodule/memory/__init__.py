"""How ORT's order of operations and its allocator turn lifetimes into peaks."""

from autorecompute.backends.ortmodule.memory.blueprint import Blueprint, draw_blueprint
from autorecompute.backends.ortmodule.memory.model import OrtMemoryModel
from autorecompute.backends.ortmodule.memory.simulator import Simulator
from autorecompute.backends.ortmodule.memory.written import write_out

__all__ = ["Blueprint", "OrtMemoryModel", "Simulator", "draw_blueprint", "write_out"]
