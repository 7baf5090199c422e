"""What a training step holds in memory, and when: profiles of single steps and what can be told from them."""

from autorecompute.memory.chains import Chain, find_chain
from autorecompute.memory.step import Operation, Phase, StepProfile, Tensor
from autorecompute.memory.survey import Effect, Forecast, Survey
from autorecompute.memory.timeline import Timeline, trace
from autorecompute.memory.view import PeakView

__all__ = [
    "Chain",
    "Effect",
    "Forecast",
    "Operation",
    "PeakView",
    "Phase",
    "StepProfile",
    "Survey",
    "Tensor",
    "Timeline",
    "find_chain",
    "trace",
]
