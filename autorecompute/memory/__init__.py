"""What a training step holds in memory, and when: profiles of single steps and what can be told from them."""

from autorecompute.memory.chains import Chain, find_chain
from autorecompute.memory.estimate import Estimate, Machine
from autorecompute.memory.model import Effect, Forecast, MemoryModel, PeakForecaster, Simulated, Simulator
from autorecompute.memory.rank_peak import RankPeak
from autorecompute.memory.step import Operation, Phase, StepProfile, StepProfiles, Tensor
from autorecompute.memory.timeline import Timeline, trace
from autorecompute.memory.view import PeakView

__all__ = [
    "Chain",
    "Effect",
    "Estimate",
    "Forecast",
    "Machine",
    "MemoryModel",
    "Operation",
    "PeakForecaster",
    "PeakView",
    "Phase",
    "RankPeak",
    "Simulated",
    "Simulator",
    "StepProfile",
    "StepProfiles",
    "Tensor",
    "Timeline",
    "find_chain",
    "trace",
]
