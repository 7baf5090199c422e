"""What a training step holds in memory, and when: profiles of single steps and what can be told from them."""

from autorecompute.memory.blueprint import Blueprint, draw_blueprint
from autorecompute.memory.chains import Chain, find_chain
from autorecompute.memory.simulator import Simulated, Simulator
from autorecompute.memory.step import Operation, Phase, StepProfile, Tensor
from autorecompute.memory.survey import Effect, Forecast, Survey
from autorecompute.memory.timeline import Timeline, trace
from autorecompute.memory.view import PeakView
from autorecompute.memory.written import write_out

__all__ = [
    "Blueprint",
    "Chain",
    "Effect",
    "Forecast",
    "Operation",
    "PeakView",
    "Phase",
    "Simulated",
    "Simulator",
    "StepProfile",
    "Survey",
    "Tensor",
    "Timeline",
    "draw_blueprint",
    "find_chain",
    "trace",
    "write_out",
]
